"""`edgedec run --grammar-aligned`: prints a sample that a grammar's mask does not bend."""

from __future__ import annotations

from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.prompt import Prompt


def write_aligned(
    engine: Engine, prompt: Prompt, config: GenerationConfig, n_tries: int, is_json: bool
) -> None:
    """Prints the text, and whether it is an exact sample."""
    aligned = engine.generate_aligned(prompt, n_tries, config)
    if is_json:
        print_json(aligned.to_dict())
        return
    write_out(aligned.text.rstrip("\n") + "\n")
    kind = "an exact sample" if aligned.is_exact else "not yet an exact sample: allow more tries"
    note(
        f"{kind}; {aligned.n_tries} tries, {aligned.n_tokens} tokens; without a grammar at most "
        f"{aligned.bound:.3g} of the model's texts follow it"
    )
