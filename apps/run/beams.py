"""`edgedec run --beams`: prints the best text of a beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from edgedec.models.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Options for beam search."""

    beams: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Search with N beams, print the best text. Sampling options do not count.",
        ),
    ] = None
    beam_groups: Annotated[
        int | None,
        typer.Option(
            metavar="G", min=1, help="Divide the beams into G groups that keep apart (default 1)."
        ),
    ] = None

    def __post_init__(self) -> None:
        if self.beams is None and self.beam_groups is not None:
            raise ConfigError("--beam-groups needs --beams N")
