"""Files of JSON in a model's directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from edgedec.export.checkpoints.mapped_file import check_is_itself
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields


def read_text(path: Path) -> str:
    """Returns a file's text; a CheckpointError where it cannot be read or is not UTF-8."""
    try:
        text = path.read_text(encoding="utf-8")
        check_is_itself(path, text[:64].encode())
        return text
    except UnicodeDecodeError:
        raise CheckpointError(
            f"{path.name}: is not UTF-8 text: fetch it again, or, if it was edited in another "
            f"encoding, convert it: iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None


def read_fields(folder: Path, name: str, is_optional: bool = False) -> Fields:
    """Returns the table in the file ``name`` of a model's directory.

    is_optional: a file that is not there has no keys.

    Raises:
        CheckpointError: It is missing or broken.
    """
    path = folder / name
    if not path.is_file():
        if is_optional:
            return Fields({}, name, CheckpointError)
        if (folder / "adapter_config.json").is_file():
            raise CheckpointError(
                f"{folder}: is a LoRA adapter; export the model that it adapts, with "
                f"--lora {folder}"
            )
        raise CheckpointError(
            f"{folder}: has no {name}; expected a Hugging Face directory (config.json, "
            f"*.safetensors, tokenizer.json) or a .gguf file"
        )
    values = read_json(path)
    if not isinstance(values, dict):
        raise CheckpointError(f"{path}: is not a table; fetch it again")
    return Fields(values, name, CheckpointError)


def read_json(path: Path) -> Any:
    """Returns what a file of JSON holds; a CheckpointError where it cannot be read."""
    try:
        return json.loads(read_text(path), object_hook=_as_float)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: is not JSON; fetch it again") from None


def _as_float(table: dict[str, Any]) -> Any:
    """Returns the number that ``table`` stands for, if it is one that JSON cannot write.

    Source: transformers 5.24 ``configuration_utils.py`` ``_encode_special_floats`` (Apache-2.0).
    """
    if set(table) == {"__float__"} and table["__float__"] in ("Infinity", "-Infinity", "NaN"):
        return float(table["__float__"])
    return table
