"""`edgedec run --beams`: prints the best text of a beam search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edgedec.apps.console.option import option
from edgedec.models.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class BeamOptions:
    """Options for beam search."""

    beams: Annotated[
        int | None,
        option(
            "N", "Search with N beams, print the best text. Sampling options do not count.", min=1
        ),
    ] = None
    beam_groups: Annotated[
        int | None,
        option("G", "Divide the beams into G groups that keep apart (default 1).", min=1),
    ] = None

    def __post_init__(self) -> None:
        if self.beams is None and self.beam_groups is not None:
            raise ConfigError("--beam-groups needs --beams N")
