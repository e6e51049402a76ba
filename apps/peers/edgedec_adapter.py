"""edgedec itself, through the sequence and the strategy that `edgedec run` decodes with."""

from __future__ import annotations

import time
from typing import Any

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.methods.method_parts import PLAIN
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.state import SessionState, cut
from edgedec.runtime.sequences.token_tree import TokenTree

_MAX_COMPUTED = 2048
"""Tokens at the beginning of a text whose rows are computed, where no layer has a window."""


class Model:
    """A loaded bundle and the tokens to feed it."""

    def __init__(self, engine: Engine, spec: dict[str, Any]) -> None:
        self._sequence = engine.new_sequence()
        self._engine = engine  # owns the model
        self._ids: list[int] = spec["ids"]
        self.facts = {"through": "edgedec.runtime", "threads": spec["threads"]}

    def prefill(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n tokens after depth others, with logits of the last."""
        self._fill(depth)
        started_s = time.perf_counter()
        run_passes(feed(self._sequence, self._ids[: depth + n]))
        return time.perf_counter() - started_s

    def decode(self, depth: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens."""
        self._fill(depth)
        tokens = self._ids[: depth + 1]
        state = DecodeState.start(self._sequence, tokens, GenerationConfig(max_new_tokens=n))
        decoding, noise = Plain().begin(state, {}), Noise(0)
        started_s = time.perf_counter()
        for _ in range(n):
            for token in run_passes(decoding.step(noise)).tokens:
                state.append(token)
        return time.perf_counter() - started_s

    def verify(self, depth: int, m: int) -> float | None:
        """Returns the seconds for a pass over m tokens with the logits of every row."""
        self._fill(depth)
        tree = TokenTree.chain(self._ids[depth : depth + m])
        rows = range(m)
        started_s = time.perf_counter()
        self._sequence.forward(tree, rows)
        return time.perf_counter() - started_s

    def decode_texts(self, n_texts: int, n: int) -> float | None:
        """Returns the seconds for n greedy tokens of each of several texts at once."""
        if n_texts > self._engine.model.capabilities.n_sequences:
            return None
        prompts = [self._ids[i : i + 1] for i in range(n_texts)]
        config = GenerationConfig(max_new_tokens=n, method=PLAIN, ignore_eos=True)
        started_s = time.perf_counter()
        self._engine.generate_many(prompts, config)
        return time.perf_counter() - started_s

    def _fill(self, depth: int) -> None:
        """Makes the first ``depth`` tokens, and no more, the contents of the KV cache.

        Rows of very many are those of the first ones over and over: passes take as long.
        """
        sequence = self._sequence
        is_there = list(sequence.tokens[:depth]) == self._ids[:depth]
        if is_there and sequence.rewind(depth) == depth:
            return
        n_computed = depth if sequence.look_back else min(depth, _MAX_COMPUTED)
        run_passes(feed(sequence, self._ids[:n_computed]))
        if n_computed < depth:
            self._repeat_rows(depth)

    def _repeat_rows(self, depth: int) -> None:
        first = self._sequence.snapshot()
        n_first = len(first.tokens)
        for start in range(n_first, depth, n_first):
            stop = min(start + n_first, depth)
            rows = cut(first.kv_rows, n_first, 0, stop - start)
            self._sequence.restore(SessionState(tuple(self._ids[:stop]), start, rows))


def open_model(spec: dict[str, Any]) -> Model:
    """Returns the bundle at ``path``, loaded."""
    options = EngineOptions(
        threads=spec["threads"],
        context=spec["context"],
        provider=spec.get("provider"),
        device=spec.get("device"),
    )
    return Model(load(spec["path"], options), spec)
