"""Prints what each step of sampling does to a model's texts.

    python tools/sampler_figures.py BUNDLE [--tokens 128]

Eight beginnings, temperature 1, the same seed for every setting. Columns: average number of tokens;
share of runs of four tokens that occurred before in their text; average surprise of a token under
the model, in bits; share of a text before it first differs from the one without the step.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Sequence
from statistics import fmean

import edgedec
from edgedec.runtime.engine.result import GenerationResult

BEGINNINGS = (
    "Once upon a time there was a", "The history of the city of Paris begins",
    "In this paper we show that", "Dear Sir,", "My favourite recipe for", "Breaking news:",
    "The three most important things in life are", "def quicksort(items):",
)  # fmt: skip
_LIVELY = {"temperature": 1.0}
SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {}, "temperature": _LIVELY, "momentum": {"momentum": 0.2},
    **{
        name: {**_LIVELY, **settings}
        for name, settings in {
            "top_k": {"top_k": 40}, "top_p": {"top_p": 0.9}, "min_p": {"min_p": 0.05},
            "typical_p": {"typical_p": 0.9}, "top_n_sigma": {"top_n_sigma": 1.0},
            "xtc_probability": {"xtc_probability": 0.5}, "mirostat": {"mirostat": 2},
            "dry_multiplier": {"dry_multiplier": 0.8},
            "repetition_penalty": {"repetition_penalty": 1.1},
            "presence_penalty": {"presence_penalty": 0.5},
            "frequency_penalty": {"frequency_penalty": 0.5},
            "no_repeat_ngram_size": {"no_repeat_ngram_size": 3},
            "logit_bias": {"logit_bias": {28: -math.inf}},
            "bad_words_ids": {"bad_words_ids": ((28,),)},
            "min_new_tokens": {"min_new_tokens": 128},
            "begin_suppress_tokens": {"begin_suppress_tokens": (28,)},
        }.items()
    },
}  # fmt: skip
"""Usual settings. Token 28 is a comma in SmolLM2's vocabulary."""


def repeated(tokens: Sequence[int], n: int = 4) -> float:
    """Returns the share of runs of ``n`` tokens that occurred before."""
    runs = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def agreed(tokens: Sequence[int], others: Sequence[int]) -> float:
    """Returns the share of ``tokens`` before the first that is not the other text's."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(tokens, others, strict=False))
    return len(list(same)) / max(1, len(tokens))


def line(name: str, texts: Sequence[GenerationResult], plain: Sequence[GenerationResult]) -> str:
    """Returns a row of the table."""
    tokens = [text.token_ids for text in texts]
    bits = fmean(-t.logprob / math.log(2) for text in texts for t in text.logprobs)
    same = fmean(agreed(a, b.token_ids) for a, b in zip(tokens, plain, strict=True))
    length, share = fmean(map(len, tokens)), fmean(map(repeated, tokens))
    return f"| `{name}` | {length:.0f} | {share:.1%} | {bits:.2f} | {same:.0%} |"


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("bundle")
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    texts: dict[str, list[GenerationResult]] = {}
    with edgedec.load(options.bundle) as engine:
        print("| step | tokens | repeated | bits | same |\n|---|---|---|---|---|")
        for name, settings in SETTINGS.items():
            sampling = edgedec.SamplingConfig(**settings)  # type: ignore[arg-type]
            config = edgedec.GenerationConfig(
                max_new_tokens=options.tokens, sampling=sampling, seed=1, method="plain", logprobs=0
            )
            texts[name] = engine.generate_many([*BEGINNINGS], config)
            plain = "greedy" if sampling.is_greedy else "temperature"
            print(line(name, texts[name], texts[plain]), flush=True)


if __name__ == "__main__":
    main()
