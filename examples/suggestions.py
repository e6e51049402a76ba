"""Offers several ways to go on with a text, as an editor or a keyboard does.

python examples/suggestions.py smollm2.edgedec
"""

from __future__ import annotations

import sys

import edgedec

TEXTS = ("Thank you for your", "Thank you for your letter. I would be")


def main(bundle: str) -> None:
    # Each ends before a token that the model is less sure of than 4 bits: better short than wrong.
    """Prints three ways to go on with each of TEXTS."""
    config = edgedec.SuggestConfig(k=3, n_tokens=6, max_entropy=4.0)
    with edgedec.load(bundle) as engine:
        for text in TEXTS:
            print(text)
            # What the texts have in common is computed once.
            for completion in engine.suggest(text, config):
                print(f"  {completion.probability:6.1%} {completion.text!r}")


if __name__ == "__main__":
    main(sys.argv[1])
