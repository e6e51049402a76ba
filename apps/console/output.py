"""What writing to a terminal or a pipe may raise, and text that cannot steer a terminal."""

from __future__ import annotations

from edgedec.models.errors import EdgedecError
from edgedec.system.streams import is_reader_gone


class OutputError(EdgedecError):
    """Standard output takes no more."""


def output_error(error: OSError) -> OSError | OutputError:
    """Returns what to raise when standard output failed with ``error``."""
    if is_reader_gone(error):
        return error
    return OutputError(f"cannot write to standard output: {error.strerror}")


def visible(text: str) -> str:
    """Returns ``text`` without the control characters that would steer a terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" or ord(c) > 0x9F else "�" for c in text)
