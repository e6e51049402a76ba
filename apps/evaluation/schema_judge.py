"""Whether a value follows a JSON schema, by the library jsonschema. It fetches nothing."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from referencing import Registry
from referencing.exceptions import Unresolvable


def judge(schema: str, value: Any) -> str | None:
    """Returns why ``value`` does not follow ``schema``, or cannot be judged; None if it does."""
    parsed = json.loads(schema)
    kind = jsonschema.validators.validator_for(parsed, jsonschema.Draft202012Validator)
    validator = kind(parsed, registry=Registry(), format_checker=kind.FORMAT_CHECKER)
    try:
        error = next(validator.iter_errors(value), None)
    except (Unresolvable, RecursionError, ValueError) as failed:
        return f"cannot be judged: {failed}"
    return None if error is None else f"{error.json_path}: {error.message}"
