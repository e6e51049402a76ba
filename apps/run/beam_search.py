"""`edgedec run --beams`: prints what a beam search finds."""

from __future__ import annotations

import dataclasses

from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.apps.run.beams import BeamOptions
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.prompt import Prompt


def write_beams(
    engine: Engine, prompt: Prompt, beams: BeamOptions, max_new_tokens: int, is_json: bool
) -> None:
    """Prints the best text of a beam search; all of them as JSON."""
    assert beams.beams is not None
    results = engine.beam_search(prompt, beams.beams, beams.beam_groups or 1, max_new_tokens)
    if is_json:
        print_json(
            {"text": results[0].text, "beams": [dataclasses.asdict(beam) for beam in results]}
        )
        return
    write_out(results[0].text.rstrip("\n") + "\n")
    note(f"best of {len(results)} beams, log-probability {results[0].log_prob:.2f}")
