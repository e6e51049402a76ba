"""Settings as people write them: ``kind:name=value,name=value``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.checks import refuse_unknown


@dataclass(frozen=True)
class SettingForm:
    """How a setting is written.

    called: what errors call it. kind: its field for what stands before the colon. names: kind ->
    names of its values; of a kind that is not among them any name will do. whole: names of values
    that are whole numbers.
    """

    called: str
    kind: str
    example: str
    names: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    whole: Sequence[str] = ()

    def split(self, text: str) -> dict[str, str]:
        """Returns the fields of the setting ``text``, the kind first, all of them as texts.

        Raises:
            ConfigError: It is not written so, or its kind has no such value.
        """
        kind, _, rest = (part.strip() for part in text.partition(":"))
        fields, known = {self.kind: kind}, self.names.get(kind, ())
        for part in filter(None, rest.split(",")):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name in fields or (known and name not in known):
                names = f"each of {', '.join(known)}" if known else "each name"
                raise ConfigError(
                    f"the {self.called} setting {text!r} holds {part!r}, expected {names} once at "
                    f"most, such as {self.example}"
                )
            fields[name] = value
        return fields


@dataclass(frozen=True)
class WrittenSetting:
    """What frozen dataclasses share whose values are a kind and numbers, written in a `FORM`."""

    FORM: ClassVar[SettingForm]

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the setting stated by ``fields``; unknown keys are a ConfigError."""
        refuse_unknown(cls, fields)
        return cls(**fields)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the setting written as ``kind:name=value,name=value``.

        Raises:
            ConfigError: It is not written so, or its kind has no such value.
        """
        fields: dict[str, Any] = cls.FORM.split(text)
        for name in fields.keys() - {cls.FORM.kind}:
            fields[name] = _number_of(fields[name], name in cls.FORM.whole)
        return cls.from_dict(fields)

    def __str__(self) -> str:
        """The text `parse` reads back: what differs from the defaults."""
        kind, default = getattr(self, self.FORM.kind), type(self)()
        parts = [
            f"{name}={value}"
            for name in self.FORM.names[kind]
            if (value := getattr(self, name)) != getattr(default, name)
        ]
        return f"{kind}:{','.join(parts)}" if parts else str(kind)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back."""
        return dataclasses.asdict(self)


def _number_of(text: str, is_whole: bool) -> Any:
    """Returns the number ``text`` states, or the text: whoever checks says what was expected."""
    try:
        return int(text) if is_whole else float(text)
    except ValueError:
        return text
