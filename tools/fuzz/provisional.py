"""Texts that begin with provisional tokens, beside those after an exact prefill: they are the same.

    python tools/fuzz/provisional.py smollm2.edgedec texts.txt --prompts 200 --seconds 500

The bundle has KV maps (`edgedec train kv`). Prompts are cut from the text at random, and decoded
under five samplers each.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pieces import run_pieces

import edgedec

SAMPLERS = (
    edgedec.SamplingConfig(),
    edgedec.SamplingConfig(temperature=0.7, top_p=0.9),
    edgedec.SamplingConfig(temperature=1.0),
    edgedec.SamplingConfig(temperature=1.2, top_k=40, min_p=0.02),
    edgedec.SamplingConfig(temperature=0.8, repetition_penalty=1.2, presence_penalty=0.5),
)
LENGTHS = range(24, 400)


def compare(engine: edgedec.Engine, tokens: Sequence[int], number: int, n_new: int = 24) -> int:
    """Decodes prompt ``number`` of ``tokens`` in both ways; returns the provisional tokens.

    Raises:
        AssertionError: A text differs.
    """
    rng = random.Random(number)
    length = rng.choice(LENGTHS)
    start = rng.randrange(len(tokens) - length)
    prompt, n_provisional = list(tokens[start : start + length]), 0
    for sampler in SAMPLERS:
        method = rng.choice(("plain", "lookup", "auto"))
        config = edgedec.GenerationConfig(
            max_new_tokens=n_new, sampling=sampler, seed=number, method="plain", prefill="exact"
        )
        exact = engine.generate(prompt, config)
        engine.forget_prompts()
        result = engine.generate(prompt, replace(config, method=method, prefill="progressive"))
        engine.forget_prompts()
        assert result.token_ids == exact.token_ids, (number, sampler, method)
        assert result.lossless
        n_provisional += result.stats.n_provisional
    return n_provisional


def main() -> int:
    """Runs what the command line asks for; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=500)
    options = parser.parse_args()
    with edgedec.load(
        options.bundle, edgedec.EngineOptions(context=512, prefix_cache_mb=0)
    ) as engine:
        tokens = engine.tokenizer.encode(options.text.read_text(encoding="utf-8"))

        def piece(n_done: int) -> int:
            compare(engine, tokens, n_done)
            return 1

        return run_pieces(
            f"provisional-{options.bundle.stem}", options.prompts, options.seconds, piece
        )


if __name__ == "__main__":
    sys.exit(main())
