"""`edgedec run --grammar-aligned`: prints a sample that a grammar's mask does not bend."""

from __future__ import annotations

from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.prompt import Prompt


def write_aligned(
    engine: Engine, prompt: Prompt, asked: GenerationConfig, n_tries: int, is_json: bool
) -> None:
    """Prints the text, and whether it is an exact sample."""
    found = engine.generate_aligned(prompt, n_tries, asked)
    if is_json:
        print_json(found.to_dict())
        return
    write_out(found.text.rstrip("\n") + "\n")
    kind = "an exact sample" if found.is_exact else "not yet an exact sample: allow more tries"
    note(
        f"{kind}; {found.n_tries} tries, {found.n_tokens} tokens; without a grammar at most "
        f"{found.bound:.3g} of the model's texts follow it"
    )
