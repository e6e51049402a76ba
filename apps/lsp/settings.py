"""What editors may set, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from edgedec.apps.typing.options import TYPING_NAMES, typing_config
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.autocomplete import AutocompleteConfig
from edgedec.autocomplete.edits import EditConfig
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.runtime.config.checks import checked_path

SECTION = "edgedec"
"""Under which editors keep these settings."""

_FOREIGN = {"command", "enabled", "excluded_languages", "trace"}
"""Keys of the section that clients keep for themselves."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What editors may set.

    bundle: a path, or the name of a model whose bundle is there. threads, context, prefix_disk: as
        for every verb. completion: also offer what is on offer as ordinary completion; None: to
        editors that know no inline completion. learn, session: what is kept; see `TypingMemory`.
        edits: predict edits, if the editor asks. edit_format: how the model is asked for them.
        min_edit_probability: of edits that are offered; None: what the bundle was calibrated to.
        typing: how suggestions are made.
    """

    bundle: str = ""
    threads: int | None = None
    context: int | None = None
    prefix_disk: int = 0
    completion: bool | None = None
    learn: str = ""
    session: str = ""
    adapt: str = ""
    edits: bool = True
    edit_format: str = EditConfig.format
    min_edit_probability: float | None = None
    typing: AutocompleteConfig = field(default_factory=AutocompleteConfig)

    def changed_by(self, values: object) -> ServerSettings:
        """Returns these settings with those of an editor put in their place.

        Args:
            given: A table by name, or one that has it under `SECTION`; None and an empty one change
                nothing.

        Raises:
            ConfigError: A name is unknown, or a value makes no sense.
        """
        if not values:
            return self
        inner = values[SECTION] if isinstance(values, Mapping) and SECTION in values else values
        if isinstance(inner, Mapping):
            inner = {key: value for key, value in inner.items() if key not in _FOREIGN}
        read = Fields({} if inner is None else inner, "settings of edgedec", ConfigError)
        names = {field.name for field in fields(self)} - {"typing"}
        read.only(names | TYPING_NAMES)
        return replace(
            self,
            bundle=_path(read, "bundle", self.bundle),
            threads=read.optional("threads", lambda key: read.integer(key, least=1))
            or self.threads,
            context=read.optional("context", lambda key: read.integer(key, least=1))
            or self.context,
            prefix_disk=self.prefix_disk
            if read.get("prefix_disk") is None
            else read.integer("prefix_disk", least=0),
            completion=self.completion
            if read.get("completion") is None
            else read.flag("completion"),
            learn=_path(read, "learn", self.learn),
            session=_path(read, "session", self.session),
            adapt=_path(read, "adapt", self.adapt),
            edits=self.edits if read.get("edits") is None else read.flag("edits"),
            edit_format=read.text("edit_format", self.edit_format),
            min_edit_probability=self.min_edit_probability
            if read.get("min_edit_probability") is None
            else read.number("min_edit_probability"),
            typing=typing_config(read, self.typing),
        )

    @property
    def edit_config(self) -> EditConfig:
        """How edits are predicted.

        Raises:
            ConfigError: A value makes no sense.
        """
        return EditConfig(format=self.edit_format, min_probability=self.min_edit_probability)

    @property
    def memory(self) -> TypingMemory:
        """What is kept between two starts."""
        return TypingMemory(self.learn, self.session, self.adapt)


def _path(read: Fields, key: str, now: str) -> str:
    """Returns the text under ``key``, which has to be empty or a path (or a name, as one)."""
    text = read.text(key, now)
    if text:
        checked_path(key, text)
    return text
