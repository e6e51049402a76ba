"""Counts passes with the draft model's grown trees, with fixed trees, and with chains, of N tokens.

python fixed_trees.py TARGET DRAFT human_eval.jsonl spec_bench.jsonl [--nodes 8] [--tokens 48]

The fixed tree is the best one if ranks are accepted at these rates, anywhere in the tree. All texts
must be equal.
"""

from __future__ import annotations

import argparse
import heapq
import json
from pathlib import Path

import edgedec
from edgedec.runtime.config.speculation import SpeculationConfig
from edgedec.runtime.drafting import draft_passes
from edgedec.runtime.drafting.drafters.draft.candidates import Candidate, Candidates
from edgedec.runtime.opening.options import EngineOptions

RATES = (0.62, 0.14, 0.06, 0.03)
grown = Candidates.add


def fixed(n_nodes: int) -> list[tuple[int, ...]]:
    """Returns the ranks that lead to each node, the likeliest node first."""
    nodes, heap, seen = [], [(-RATES[0], (0,))], {(0,)}
    while len(nodes) < n_nodes:
        value, path = heapq.heappop(heap)
        nodes.append(path)
        below = [((*path, 0), value * RATES[0])]
        if path[-1] + 1 < len(RATES):
            rates = RATES[path[-1] + 1] / RATES[path[-1]]
            below.append(((*path[:-1], path[-1] + 1), value * rates))
        for other, worth in below:
            if other not in seen:
                seen.add(other)
                heapq.heappush(heap, (worth, other))
    return nodes


def keep_to(template: list[tuple[int, ...]] | None) -> None:
    """Has candidates count only if they are in a template; all by their values if None."""

    def add(self: Candidates, option: object, parent: int, probability: float) -> int:
        index = grown(self, option, parent, probability)
        paths = self.__dict__.setdefault("paths", {})
        rank = sum(paths[i][:-1] == paths.get(parent, ()) for i in paths)
        path = paths[index] = (*paths.get(parent, ()), rank)
        candidate = self._all[index]
        value = 1 - 0.01 * template.index(path) if path in template else -1.0
        self._all[index] = Candidate(option, parent, candidate.depth, max(probability, 1e-9), value)
        return index

    Candidates.add = grown if template is None else add


def main() -> None:
    """Prints the passes of both models."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("target", "draft", "programs", "chats"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    programs = [json.loads(line)["prompt"] for line in arguments.programs.read_text().splitlines()]
    rows = [json.loads(line) for line in arguments.chats.read_text().splitlines()]
    kinds = ("mt_bench", "translation", "math_reasoning")
    chats = [row["turns"][0] for row in rows if row["subtask"] in kinds][::7]
    texts = [f"Complete this function:\n{text}" for text in programs[:4]] + chats[:4]
    n_drafting = 0

    def counted(compute):
        def count(*args, **named):
            nonlocal n_drafting
            n_drafting += 1
            return (yield from compute(*args, **named))

        return count

    for name in ("grow", "feed"):
        setattr(draft_passes.DraftPasses, name, counted(getattr(draft_passes.DraftPasses, name)))
    templates = {
        "grown": None,
        "fixed": fixed(arguments.nodes),
        "chain": [(0,) * (i + 1) for i in range(arguments.nodes)],
        "half a chain": [(0,) * (i + 1) for i in range(arguments.nodes // 2)],
    }
    written: dict[str, tuple[int, ...]] = {}
    with edgedec.load(arguments.target, EngineOptions(draft=arguments.draft, head=False)) as engine:
        for kind, template in templates.items():
            keep_to(template)
            length = SpeculationConfig(draft_len=len(template or templates["fixed"]))
            n_tokens = n_passes = n_drafting = 0
            for text in texts:
                prompt = [{"role": "user", "content": text}]
                result = engine.generate(
                    prompt, max_new_tokens=arguments.tokens, method="draft", speculation=length
                )
                assert written.setdefault(text, result.token_ids) == result.token_ids
                n_tokens += result.n_new_tokens
                n_passes += result.stats.n_passes
            print(
                f"{kind}: {n_tokens} tokens, {n_tokens / n_passes:.2f} per pass of the target, "
                f"{n_drafting / n_passes:.2f} of the draft model",
                flush=True,
            )


if __name__ == "__main__":
    main()
