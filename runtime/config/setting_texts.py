"""Settings as people write them: ``kind:name=value,name=value``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edgedec.models.errors import ConfigError


def split_setting(
    text: str, names: Mapping[str, Sequence[str]], what: str, example: str
) -> tuple[str, dict[str, str]]:
    """Returns the kind and the values of the setting ``text``.

    Args:
        names: Kind -> names of its values. Of an unknown kind any name will do.
        what: What errors call it, with an ``example``.

    Raises:
        ConfigError: It is not written so, or its kind has no such value.
    """
    kind, _, rest = (part.strip() for part in text.partition(":"))
    values: dict[str, str] = {}
    own = names.get(kind, ())
    for part in filter(None, rest.split(",")):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name in values or (own and name not in own):
            raise ConfigError(
                f"the {what} setting {text!r} holds {part!r}, expected each of "
                f"{', '.join(own)} once at most, such as {example}"
            )
        values[name] = value
    return kind, values


def written(kind: str, names: Sequence[str], setting: Any, default: Any) -> str:
    """Returns the text that `split_setting` reads back: what differs from ``default``."""
    parts = [
        f"{name}={value}"
        for name in names
        if (value := getattr(setting, name)) != getattr(default, name)
    ]
    return f"{kind}:{','.join(parts)}" if parts else kind


def number_of(text: str, is_whole: bool) -> Any:
    """Returns the number ``text`` states, or the text: whoever checks says what was expected."""
    try:
        return int(text) if is_whole else float(text)
    except ValueError:
        return text
