"""Times `generate_many` over prompts with three beginnings: sorted, as given, and sharing nothing.

python batches.py BUNDLE gsm8k.jsonl [--prompts 200] [--tokens 8] [--runs 3] [--kinds NAME,..]

The beginnings are two worked examples each; `short` reads the questions alone, all at once, and
`short-alone` one after the other. All ways of the same prompts must give the same tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import edgedec
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import BATCH
from edgedec.runtime.engine.many import generate_many


def run(kind: str, bundle: Path, prompts: list[str], n_tokens: int) -> tuple[list, float]:
    """Returns the tokens of all answers, and the seconds they took."""
    with edgedec.load(bundle) as engine:
        config = GenerationConfig(max_new_tokens=n_tokens, method="plain", priority=BATCH)
        ids = [engine.encode(prompt) for prompt in prompts]
        engine.generate("The", max_new_tokens=2, method="plain")
        configs = [
            replace(config, prefix_group=str(i) if kind == "nothing" else "")
            for i in range(len(ids))
        ]
        openers = [partial(engine.streams.open, *pair) for pair in zip(ids, configs, strict=True)]
        order = sorted(range(len(ids)), key=ids.__getitem__) if kind == "sorted" else None
        most = 1 if kind == "short-alone" else engine.model.capabilities.n_sequences
        started_s = time.perf_counter()
        results = generate_many(openers, most, None, order=order)
        return [result.token_ids for result in results], time.perf_counter() - started_s


def main() -> None:
    """Prints seconds and whether the tokens are the same."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--characters", type=int, help="Of a question; all by default.")
    parser.add_argument("--kinds", default="nothing,given,sorted")
    arguments = parser.parse_args()
    rows = [json.loads(line) for line in arguments.data.read_text().splitlines()]
    begins = [
        "".join(
            f"Question: {row['question']}\nAnswer: {row['answer']}\n\n" for row in rows[-n:][:2]
        )
        for n in (6, 4, 2)
    ]
    draw = random.Random(0)
    questions = [
        f"Question: {rows[i % (len(rows) - 6)]['question'][: arguments.characters]}\nAnswer:"
        for i in range(arguments.prompts)
    ]
    long = [draw.choice(begins) + question for question in questions]
    first: dict[bool, list] = {}
    for _ in range(arguments.runs):
        for kind in arguments.kinds.split(","):
            is_short = kind.startswith("short")
            tokens, seconds = run(
                kind, arguments.bundle, questions if is_short else long, arguments.tokens
            )
            same = first.setdefault(is_short, tokens) == tokens
            print(f"{kind}: {seconds:.1f} s, {'equal' if same else 'DIFFERENT'}", flush=True)


if __name__ == "__main__":
    main()
