"""Settings of suggestions in every window, in one file that its owner may edit."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from edgedec.apps.type.prose import N_WORDS
from edgedec.apps.type.text_place import FieldKind
from edgedec.apps.typing.settings_file import KeptSettings
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields

_TERMINALS = (
    "alacritty", "foot", "gnome-terminal", "kgx", "kitty", "konsole", "lxterminal",
    "mate-terminal", "ptyxis", "rxvt", "st-256color", "terminator", "tilix", "urxvt", "wezterm",
    "xfce4-terminal", "xterm",
)  # fmt: skip
"""Beginnings of names of programs whose fields do not say that they are terminals."""

_PASSWORD_STORES = ("1password", "bitwarden", "keepassxc", "seahorse", "pinentry")


@dataclass(frozen=True, kw_only=True)
class TypeSettings:
    """Settings of suggestions in every window.

    is_on: suggestions are shown. bundle: the model; empty: the one that was named at the start.
    words: most words at a time. min_probability: of a suggestion, by the model. has_terminals:
    suggestions in terminals, too. off_in: beginnings of names of programs without suggestions, in
    lower case.
    """

    is_on: bool = True
    bundle: str = ""
    words: int = N_WORDS
    min_probability: float = 0.7
    has_terminals: bool = False
    off_in: tuple[str, ...] = _PASSWORD_STORES

    @classmethod
    def parse(cls, table: object, origin: str) -> TypeSettings:
        """Returns the settings in a table; what it lacks is as usual.

        Raises:
            ConfigError: A name is unknown, or a value makes no sense.
        """
        read, usual = Fields(table, origin, ConfigError), cls()
        read.only(set(asdict(usual)))
        least = read.number("min_probability", usual.min_probability)
        if not 0 <= least <= 1:
            read.fail("min_probability", least, "0 to 1")
        off_in = read.texts("off_in") if "off_in" in read.values else usual.off_in
        return cls(
            is_on=read.flag("is_on", usual.is_on),
            bundle=read.text("bundle", usual.bundle),
            words=read.integer("words", usual.words, least=1, most=20),
            min_probability=least,
            has_terminals=read.flag("has_terminals", usual.has_terminals),
            off_in=tuple(name.lower() for name in off_in if name),
        )

    def allows(self, application: str, kind: FieldKind) -> bool:
        """Says whether something may be read and suggested in such a field of a program."""
        if not self.is_on or application.startswith(self.off_in):
            return False
        if kind is FieldKind.TERMINAL or application.startswith(_TERMINALS):
            return self.has_terminals and kind in (FieldKind.TERMINAL, FieldKind.PROSE)
        return kind is FieldKind.PROSE


class SettingsFile(KeptSettings[TypeSettings]):
    """The file of these settings."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: where it is; None: in the platform's folder for settings."""
        super().__init__("type.json", TypeSettings.parse, folder)
