"""`edgedec run --beams`: prints the best text of a beam search."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import typer

from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.prompt import Prompt


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


def write_beams(
    engine: Engine, prompt: Prompt, beams: BeamOptions, max_new_tokens: int, is_json: bool
) -> None:
    """Prints the best text of a beam search; all of them as JSON."""
    assert beams.beams is not None
    found = engine.beam_search(prompt, beams.beams, beams.beam_groups or 1, max_new_tokens)
    if is_json:
        print_json({"text": found[0].text, "beams": [dataclasses.asdict(one) for one in found]})
        return
    write_out(found[0].text.rstrip("\n") + "\n")
    note(f"best of {len(found)} beams, log-probability {found[0].log_prob:.2f}")
