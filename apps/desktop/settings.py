"""What the editor remembers between two starts, validated."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import platformdirs

from edgedec.apps.typing.options import TYPING_NAMES, typing_config
from edgedec.apps.typing.settings_file import KeptSettings
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.autocomplete import AutocompleteConfig
from edgedec.autocomplete.edits.formats import FORMATS
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.widgets import Trigger

THEMES = ("system", "light", "dark")

FONT_SIZES = (6, 72)
"""Smallest and largest. Units: points."""

N_RECENT = 10
"""How many files are remembered."""


@dataclass(frozen=True, kw_only=True)
class EditorSettings:
    """What the editor remembers between two starts.

    bundle: a path, or the name of a model. threads: None: one for each core. context: most tokens;
    None: the bundle's. trigger, delay_ms: when something is asked for. has_colours: ghost text has
    a colour for each drafter. font_size: Units: points. code_font, prose_font: families; empty: the
    system's. tab_width: Units: columns. has_tabs: new programs are indented with tabs. recent:
    paths of files that were opened or saved, the latest first. folder: the one beside the text;
    empty: none. has_details: the panel of counters is open. learns, keeps_session, adapts: what is
    kept in the platform's folder for state; see `TypingMemory`. spelling: the language of the
    dictionary that prose is held against; empty: none. silent: endings of files without
    suggestions, such as ``md txt``. edits: how the model is asked for the next edit; empty: never.
    typing: how suggestions are made.
    """

    bundle: str = ""
    threads: int | None = None
    context: int | None = 4096
    trigger: Trigger = Trigger.TYPING
    delay_ms: int = 0
    has_colours: bool = False
    theme: str = "system"
    font_size: int = 12
    code_font: str = ""
    prose_font: str = ""
    tab_width: int = 4
    has_tabs: bool = False
    recent: tuple[str, ...] = ()
    folder: str = ""
    has_details: bool = False
    learns: bool = False
    keeps_session: bool = False
    adapts: bool = False
    spelling: str = "en"
    silent: str = ""
    edits: str = "instruction"
    typing: AutocompleteConfig = field(default_factory=AutocompleteConfig)

    @classmethod
    def parse(cls, values: object, origin: str) -> EditorSettings:
        """Returns the settings in a table; what it lacks is as usual.

        Raises:
            ConfigError: A name is unknown, or a value makes no sense.
        """
        read, usual = Fields(values, origin, ConfigError), cls()
        smallest, largest = FONT_SIZES
        read.only({field.name for field in fields(cls)})
        typing = read.table("typing", {})
        context = read.optional("context", lambda key: read.integer(key, least=1))
        if "context" not in read.values:  # null says something: all that the bundle serves
            context = usual.context
        typing.only(TYPING_NAMES)
        return cls(
            bundle=read.text("bundle", usual.bundle),
            threads=read.optional("threads", lambda key: read.integer(key, least=1)),
            context=context,
            trigger=Trigger(_choice(read, "trigger", tuple(Trigger), usual.trigger)),
            delay_ms=read.integer("delay_ms", usual.delay_ms, least=0, most=10_000),
            has_colours=read.flag("has_colours", usual.has_colours),
            theme=_choice(read, "theme", THEMES, usual.theme),
            font_size=read.integer("font_size", usual.font_size, least=smallest, most=largest),
            tab_width=read.integer("tab_width", usual.tab_width, least=1, most=16),
            code_font=read.text("code_font", usual.code_font),
            prose_font=read.text("prose_font", usual.prose_font),
            has_tabs=read.flag("has_tabs", usual.has_tabs),
            recent=_paths(read, "recent"),
            folder=read.text("folder", usual.folder),
            has_details=read.flag("has_details", usual.has_details),
            learns=read.flag("learns", usual.learns),
            keeps_session=read.flag("keeps_session", usual.keeps_session),
            adapts=read.flag("adapts", usual.adapts),
            spelling=read.text("spelling", usual.spelling),
            silent=read.text("silent", usual.silent),
            edits=_choice(read, "edits", ("", *FORMATS), usual.edits),
            typing=typing_config(typing, usual.typing),
        )

    def with_recent(self, path: Path) -> EditorSettings:
        """Returns these settings with a file that was opened or saved just now."""
        others = [path_ for path_ in self.recent if path_ != str(path)]
        return replace(self, recent=(str(path), *others)[:N_RECENT])

    def reset(self) -> EditorSettings:
        """Returns the usual settings, with the model, the files and the panels of these."""
        kept = {name: getattr(self, name) for name in ("bundle", "recent", "folder", "has_details")}
        return EditorSettings(**kept)

    def offers_in(self, path: Path | None) -> bool:
        """Returns whether a file is offered suggestions; None: it has no name yet."""
        endings = {
            f".{word.lstrip('*.').lower()}" for word in self.silent.replace(",", " ").split()
        }
        return path is None or path.suffix.lower() not in endings

    @property
    def memory(self) -> TypingMemory:
        """What is kept between two starts besides the settings."""
        folder = Path(platformdirs.user_state_dir("edgedec"))
        return TypingMemory(
            str(folder / "learned") if self.learns else "",
            str(folder / "sessions") if self.keeps_session else "",
            str(folder / "written.replay") if self.adapts else "",
        )


class SettingsFile(KeptSettings[EditorSettings]):
    """The file of these settings."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: where it is; None: in the platform's folder for settings."""
        super().__init__("desktop.json", EditorSettings.parse, folder)


def _choice(read: Fields, key: str, known: tuple[str, ...], usual: str) -> str:
    value = read.text(key, usual)
    if value not in known:
        read.fail(key, value, f"one of {', '.join(known)}")
    return value


def _paths(read: Fields, key: str) -> tuple[str, ...]:
    paths = read.get(key)
    if paths is None:
        return ()
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        read.fail(key, paths, "a list of paths")
    return tuple(paths[:N_RECENT])
