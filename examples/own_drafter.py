"""Decodes with a drafter of one's own, which lies in examples/drafters.

python examples/own_drafter.py smollm2.edgedec

A drafter may guess as badly as it likes: the text is that of plain decoding.
"""

from __future__ import annotations

import sys
from pathlib import Path

import edgedec
from edgedec.runtime.drafting import drafters

PROMPT = "red, green, blue, red, green, blue, red, green,"


def main(bundle: str) -> None:
    """Prints what plain decoding and the drafter `echo` make of a prompt."""
    # From here on a module in that folder is a method, and `auto` weighs it, too.
    drafters.__path__.append(str(Path(__file__).parent / "drafters"))
    texts = set()
    with edgedec.load(bundle) as engine:
        for method in ("plain", "echo", "lookup+echo"):
            config = edgedec.GenerationConfig(max_new_tokens=32, method=method)
            result = engine.generate(PROMPT, config)
            texts.add(result.text)
            stats = result.stats
            print(f"{method}: {stats.n_passes} passes, {stats.n_accepted} drafted tokens accepted")
    assert len(texts) == 1, "a lossless method wrote another text"
    print(texts.pop())


if __name__ == "__main__":
    main(sys.argv[1])
