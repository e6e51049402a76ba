"""Options of what an output has to follow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from edgedec.apps.console.option import structure
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig


@dataclass(frozen=True, kw_only=True)
class GrammarOptions:
    """A schema, an expression or a grammar; at most one."""

    json_schema: Annotated[
        str | None,
        structure(
            "FILE|TEXT", "Write JSON that fits this schema: a file, or text that begins with {."
        ),
    ] = None
    regex: Annotated[
        str | None, structure("TEXT", "Write text that this regular expression matches.")
    ] = None
    grammar: Annotated[
        Path | None, structure("FILE", "Write text that follows this grammar (Lark).")
    ] = None
    grammar_aligned: Annotated[
        int | None,
        structure(
            "N",
            "Sample as the model would write if it kept to the grammar by itself: make up to "
            "N tries. More come nearer.",
            min=1,
        ),
    ] = None

    def apply(self, request: GenerationConfig) -> GenerationConfig:
        """Returns ``request`` with what was given.

        Raises:
            ConfigError: A file cannot be read, or what it says is refused.
        """
        schema = self.json_schema
        if schema is not None and not schema.lstrip().startswith("{"):
            schema = _read("--json-schema", Path(schema))
        grammar = None if self.grammar is None else _read("--grammar", self.grammar)
        return replace(request, json_schema=schema, regex=self.regex, grammar=grammar)


def _read(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"cannot read {path} of {option}: {reason}") from None
