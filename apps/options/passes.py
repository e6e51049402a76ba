"""Which passes are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from edgedec.apps.console.option import option
from edgedec.models.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class PassOptions:
    """Options that name the passes to measure."""

    prompt_tokens: Annotated[
        str | None,
        option(
            "N,..", "Prompt lengths to read (default 512; 0 for none).", "--prompt-tokens", "-p"
        ),
    ] = None
    new_tokens: Annotated[
        str | None,
        option(
            "N,..", "Numbers of tokens to decode (default 128; 0 for none).", "--new-tokens", "-n"
        ),
    ] = None
    rows: Annotated[
        str | None,
        option("N,..", "Rows per verify pass (default 1,2,4,8,16; 0 for none).", "--rows", "-m"),
    ] = None
    depth: Annotated[
        str | None, option("N,..", "Tokens already in the KV cache (default 0).", "--depth", "-d")
    ] = None
    texts: Annotated[
        str | None, option("N,..", "Decode N texts at once, too, e.g. 8 (default 1).")
    ] = None

    def counts(self) -> tuple[tuple[int, ...], ...]:
        """Returns the numbers that each option names; ConfigError if that is nothing to measure."""
        counts = (
            parse_counts(self.prompt_tokens, "512", "--prompt-tokens"),
            parse_counts(self.new_tokens, "128", "--new-tokens"),
            parse_counts(self.rows, "1,2,4,8,16", "--rows"),
            parse_counts(self.depth, "0", "--depth"),
            parse_counts(self.texts, "1", "--texts"),
        )
        if not any(map(any, counts[:3])):
            raise ConfigError("nothing to measure: -p, -n and -m are all 0")
        return counts


def parse_counts(numbers: str | None, default: str, option: str) -> tuple[int, ...]:
    """Returns the numbers written as ``1,2,4``, each once; anything else is a usage error."""
    text = default if numbers is None else numbers
    try:
        counts = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        counts = (-1,)
    if min(counts) < 0:
        raise typer.BadParameter(f"got {text!r}, expected numbers as in 1,2,4", param_hint=option)
    return counts
