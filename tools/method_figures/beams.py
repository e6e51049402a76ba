"""Prints how different the texts of a beam search are, with 1, 2 and 4 groups.

python beams.py BUNDLE spec_bench.jsonl
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from statistics import fmean

import edgedec


def main() -> None:
    """Prints one line per number of groups, over twelve prompts and four beams of 24 tokens."""
    rows = [json.loads(line) for line in Path(sys.argv[2]).read_text().splitlines()]
    texts = [row["turns"][0] for row in rows if row["subtask"] in ("mt_bench", "qa")]
    texts = [text for text in texts if len(text) < 200][::4][:12]
    with edgedec.load(sys.argv[1]) as engine:
        for n_groups in (1, 2, 4):
            shares, nats, best, started_s = [], [], [], time.perf_counter()
            for text in texts:
                beams = engine.beam_search(
                    [{"role": "user", "content": text}],
                    n_beams=4,
                    n_groups=n_groups,
                    max_new_tokens=24,
                )
                pairs = [
                    pair
                    for beam in beams
                    for pair in zip(beam.token_ids, beam.token_ids[1:], strict=False)
                ]
                shares.append(len(set(pairs)) / len(pairs))
                each = [-beam.log_prob / len(beam.token_ids) for beam in beams]
                nats.append(fmean(each))
                best.append(min(each))
            print(
                f"{n_groups} groups: {fmean(shares):.1%} of the pairs of tokens are distinct, "
                f"{fmean(nats):.2f} nats per token, the best {fmean(best):.2f}, "
                f"{time.perf_counter() - started_s:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
