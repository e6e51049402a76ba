"""Records traces for `replay.py`: what a bundle's models say along its own greedy texts.

    python tools/draft_replay/record.py BUNDLE TRACES.npz --prompts DATA [--draft BUNDLE]
        [--count 60]

DATA is a folder with `spec_bench.jsonl`, `human_eval.jsonl` and `gsm8k_test.jsonl` (Spec-Bench,
HumanEval, GSM8K, one JSON object a line). Texts have 24, 48 or 96 tokens at most; every second one
is held out. Prompts of more than 300 tokens are left out. What was recorded before is kept, so a
run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from traces import N_DRAFT, N_MTP, N_TARGET, Trace, load, save

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load as load_bundle
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

LENGTHS = (24, 96, 48)
LONGEST_PROMPT = 300


def prompts_of(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields kinds of prompts and the turns of a user, kinds in turn."""
    kinds: dict[str, list[list[str]]] = {}
    for row in _rows(folder / "spec_bench.jsonl"):
        kinds.setdefault(row["subtask"], []).append(row["turns"])
    tasks = _rows(folder / "human_eval.jsonl")
    kinds["code"] = [[f"Complete this function:\n\n{row['prompt']}"] for row in tasks]
    kinds["grade_school"] = [[row["question"]] for row in _rows(folder / "gsm8k_test.jsonl")]
    for turn in itertools.zip_longest(*kinds.values()):
        for kind, turns in zip(kinds, turn, strict=True):
            if turns is not None:
                yield kind, turns


def _rows(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


class Recorder:
    """One bundle's models. draft: sequence of the draft model, if there is one."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._target = engine.new_sequence()
        opened = engine.loaded.parts.drafters.draft
        self._role = None if opened is None else opened()
        self._with_mtp = self._target.model.capabilities.mtp > 0

    def record(self, kind: str, is_held_out: bool, prompt: list[int], n_new: int) -> Trace:
        """Returns the trace of the text that the target writes after ``prompt``."""
        return self._engine.run(self._steps(kind, is_held_out, prompt, n_new))

    def _steps(self, kind: str, is_held_out: bool, prompt: list[int], n_new: int) -> Passes[Trace]:
        text, seen = list(prompt), list[Rows]()
        yield from feed(self._target, text[:-1], with_logits=False)
        while len(seen) < n_new and not (seen and text[-1] in self._engine.stop_token_ids):
            tree = TokenTree((text[-1],), (-1,))
            rows = yield Pass(self._target, tree, (0,), with_logits=False, with_mtp=self._with_mtp)
            self._target.commit((0,))
            seen.append(rows.copy())
            text.append(int(rows.stats.argmax[0]))
        draft_ids, draft_logs = yield from self._draft(text, len(prompt))
        mtp = [rows.mtp for rows in seen if rows.mtp is not None]
        empty = np.zeros((0, 0, N_MTP))
        stats = [rows.stats for rows in seen]
        logs = [s.top_logits[:, :N_TARGET] - s.log_sum_exp[:, None] for s in stats]
        return Trace(
            kind,
            is_held_out,
            len(prompt),
            np.array(text, np.int32),
            np.concatenate([s.top_ids[:, :N_TARGET] for s in stats]).astype(np.int32),
            np.concatenate(logs).astype(np.float16),
            draft_ids,
            draft_logs,
            np.concatenate([m.ids[:, :, :N_MTP] for m in mtp] or [empty]).astype(np.int32),
            np.concatenate([m.log_probs[:, :, :N_MTP] for m in mtp] or [empty]).astype(np.float16),
        )

    def _draft(self, text: list[int], n_prompt: int) -> Passes[tuple[Any, Any]]:
        if self._role is None:
            return np.zeros((0, N_DRAFT), np.int32), np.zeros((0, N_DRAFT), np.float16)
        names = self._role.token_map.names
        sequence: TokenSequence = self._role.take([])
        ids, logs = [], []
        try:
            for n in range(n_prompt, len(text)):
                rows = yield from feed(sequence, text[:n], with_logits=False)
                stats = rows.stats
                ids.append(names[stats.top_ids[0, :N_DRAFT]])
                logs.append(stats.top_logits[0, :N_DRAFT] - stats.log_sum_exp[0])
        finally:
            self._role.pool.give_back(sequence)
        return np.array(ids, np.int32), np.array(logs, np.float16)


def conversations(engine: Engine, folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Yields kinds and prompts that are short enough; chats have a second turn, too."""
    for kind, turns in prompts_of(folder):
        messages = []
        for turn in turns[:2]:
            messages.append({"role": "user", "content": turn})
            prompt = engine.encode(messages)
            if len(prompt) > LONGEST_PROMPT:
                break
            yield kind, prompt
            if len(turns) > 1:
                answer = engine.generate(messages, method="plain", max_new_tokens=80).text
                messages.append({"role": "assistant", "content": answer})


def main() -> None:
    """Records what drafters would have proposed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--count", type=int, default=60)
    arguments = parser.parse_args()
    traces = load(arguments.output) if arguments.output.exists() else []
    options = EngineOptions(draft=arguments.draft or True)
    with closing(load_bundle(arguments.bundle, options)) as engine:
        recorder = Recorder(engine)
        prompts = itertools.islice(
            conversations(engine, arguments.prompts), len(traces), arguments.count
        )
        for i, (kind, prompt) in enumerate(prompts, start=len(traces)):
            n_new = LENGTHS[i // 2 % len(LENGTHS)]
            traces.append(recorder.record(kind, i % 2 == 1, prompt, n_new))
            if i % 10 == 9 or i + 1 == arguments.count:
                save(arguments.output, traces)
                print(f"{i + 1} of {arguments.count} texts", flush=True)


if __name__ == "__main__":
    main()
