"""How the lines look that requests leave on standard error."""

from enum import StrEnum


class LogForm(StrEnum):
    """``name=value`` pairs, or an object of JSON; one line per request."""

    REQUESTS = "requests"
    JSON = "json"
