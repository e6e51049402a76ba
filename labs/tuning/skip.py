"""`edgedec tune --skip`: which sub-layers this model can draft without, on this device."""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from rich.table import Table

from edgedec.labs.tuning.skip_search import SkipKey, StepCosts, search, speedup
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import SKIP_KEY, BundleManifest
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.engine.deadline import generate_many_until
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.methods.method_parts import PLAIN
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.system.files import replace_json

_TEXT_SHARE = 0.3
"""Of the time, for texts the model writes; the rest is for the search."""

_N_FEW = 2  # texts that every candidate is tried on
_MIN_TOKENS = 16
_SIZES = (1, 2, 3, 4, 6, 8)  # rows of the passes that are timed
_REPETITIONS = 7
_ANY_TOKEN = 0

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class SkipFinding:
    """The best set of one budget, as measured. speedup: expected, over plain decoding."""

    off: SkipKey
    acceptance: float
    cost: float
    speedup: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields."""
        return {**dataclasses.asdict(self), "off": list(self.off)}


@dataclass(frozen=True)
class SkipTuning:
    """What a search came to. evidence: what it rests on, JSON-ready."""

    findings: list[SkipFinding]
    evidence: dict[str, Any]
    is_interrupted: bool

    @property
    def best(self) -> SkipFinding:
        """The set that is expected to be fastest."""
        return max(self.findings, key=lambda finding: finding.speedup)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields: the best set, that of each budget, and the evidence."""
        budgets = [finding.to_dict() for finding in self.findings]
        return {**self.best.to_dict(), "budgets": budgets, "evidence": self.evidence}

    def written_into(self, manifest: BundleManifest) -> BundleManifest:
        """Returns ``manifest`` with this among its defaults."""
        defaults = {**manifest.defaults, SKIP_KEY: self.to_dict()}
        return dataclasses.replace(manifest, defaults=defaults)

    def render(self) -> Table:
        """Returns the table for a person."""
        table = Table(box=None, padding=(0, 2, 0, 0))
        table.add_column("left out", overflow="fold")
        for name in ("tokens that hold", "cost of a step", f"x {PLAIN}, expected"):
            table.add_column(name, justify="right")
        for finding in self.findings:
            table.add_row(
                named(finding.off),
                f"{100 * finding.acceptance:.1f} %",
                f"{finding.cost:.2f}",
                f"{finding.speedup:.2f}",
                style="bold" if finding is self.best else None,
            )
        table.caption = "best sets by size; bold is what method skip leaves out"
        return table


@dataclass
class SkipState:
    """Texts and acceptances found so far, in a file, so that the next run goes on from there.

    texts: prompt and output, by prompt. known: share of tokens that held, by set and texts.
    """

    path: Path
    texts: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    known: dict[str, float] = field(default_factory=dict)

    @classmethod
    def open(cls, identity: str, is_fresh: bool) -> SkipState:
        """Returns what is known of ``identity``: model, prompts; nothing if unreadable."""
        state = cls(Path(platformdirs.user_cache_dir("edgedec")) / "tune" / f"{identity}.skip.json")
        if is_fresh:
            return state
        try:
            found = json.loads(state.path.read_text(encoding="utf-8"))
            texts = {
                str(name): ([int(i) for i in prompt], [int(i) for i in output])
                for name, (prompt, output) in found["texts"].items()
            }
            known = {str(key): float(share) for key, share in found["known"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return state
        state.texts, state.known = texts, known
        return state

    def save(self) -> None:
        """Writes everything; an older file is replaced when all of the new one is written.

        Raises:
            ConfigError: It cannot be written.
        """
        try:
            replace_json(self.path, {"texts": self.texts, "known": self.known})
        except OSError as error:
            raise ConfigError(f"cannot write {self.path}: {error.strerror or error}") from None


def named(off: Sequence[int]) -> str:
    """Returns sub-layers as people write them: a3 the attention of layer 3, m3 its MLP."""
    return " ".join(f"{'am'[i % 2]}{i // 2}" for i in off)


def tune_skip(
    engine: Engine,
    prompts: Mapping[str, list[int]],
    n_tokens: int,
    state: SkipState,
    seconds: float,
    n_at_once: int,
    report: Progress,
) -> SkipTuning:
    """Returns the best sets that could be found in time.

    n_at_once: texts that the model writes side by side.

    Raises:
        ConfigError: The graph cannot leave sub-layers out, or there is too little text.
    """
    if not engine.model.capabilities.gates:
        raise ConfigError(
            "this bundle's graph cannot leave sub-layers out: export the model again, as a fused "
            "graph"
        )
    started_s = time.monotonic()
    is_interrupted = False
    try:
        until_s = started_s + _TEXT_SHARE * seconds
        _write_texts(engine, prompts, n_tokens, state, until_s, n_at_once, report)
    except KeyboardInterrupt:
        is_interrupted = True
    with _Trial(engine, state, report) as trial:
        n_read = sum(len(output) for _, output in state.texts.values())
        if n_read < _MIN_TOKENS:
            raise ConfigError(
                f"the prompts gave {n_read} tokens, expected at least {_MIN_TOKENS}: use more "
                "or other prompts, or give it more --minutes"
            )
        costs, best = trial.step_costs(), dict[int, SkipKey]()
        try:
            for off in search(engine.model.n_layers, trial.acceptance, costs, seed=0):
                best[len(off)] = off
                if time.monotonic() > started_s + seconds or is_interrupted:
                    break
        except KeyboardInterrupt:
            is_interrupted = True
        state.save()
        if not best:
            raise KeyboardInterrupt
        findings = [trial.measured(off, costs) for off in best.values()]
    evidence = {"n_texts": len(state.texts), "n_tokens": n_read, "n_tried": len(state.known)}
    return SkipTuning(findings, evidence, is_interrupted)


def _write_texts(
    engine: Engine,
    prompts: Mapping[str, list[int]],
    n_tokens: int,
    state: SkipState,
    until_s: float,
    n_at_once: int,
    report: Progress,
) -> None:
    """Adds what the model writes after the prompts that are missing, as far as time allows."""
    request = GenerationConfig(max_new_tokens=n_tokens, sampling=SamplingConfig(), method=PLAIN)
    missing = [name for name in prompts if name not in state.texts]
    for start in range(0, len(missing), n_at_once):
        report("write texts", len(state.texts), len(prompts))
        if state.texts and time.monotonic() > until_s:
            break
        # The first are written whatever it takes: without any there is nothing to search on.
        deadline_s = until_s if state.texts else math.inf
        names = missing[start : start + n_at_once]
        some = [prompts[name] for name in names]
        results = generate_many_until(engine, some, request, deadline_s, len(some))
        for name, prompt, result in zip(names, some, results, strict=True):
            if len(result.token_ids) > 1:
                state.texts[name] = (list(prompt), list(result.token_ids))
        state.save()


class _Trial:
    """Tries sets on the texts, each of which has a sequence that ends before its output."""

    def __init__(self, engine: Engine, state: SkipState, report: Progress) -> None:
        self._model, self._state, self._report = engine.model, state, report
        self._sequences: list[tuple[TokenSequence, list[int], list[int]]] = []

    def __enter__(self) -> _Trial:
        for prompt, output in self._state.texts.values():
            sequence = TokenSequence(self._model, len(prompt) + len(output) + max(_SIZES))
            self._sequences.append((sequence, prompt, output))
            if before := prompt[:-1]:
                run_passes(feed(sequence, before, with_logits=False))
        return self

    def __exit__(self, *error: object) -> None:
        for sequence, _, _ in self._sequences:
            sequence.close()

    def acceptance(self, off: SkipKey, is_final: bool) -> float:
        """Returns the share of tokens of all texts, or of few, that hold without ``off``."""
        texts = self._sequences if is_final else self._sequences[:_N_FEW]
        key = f"{','.join(map(str, off))}/{len(texts)}"
        if key not in self._state.known:
            self._report("try sets", len(self._state.known), 0)
            held = [self._held(*text, self._gates(off)) for text in texts]
            self._state.known[key] = round(float(np.concatenate(held).mean()), 6)
            if is_final:
                self._state.save()
        return self._state.known[key]

    def step_costs(self) -> StepCosts:
        """Returns what passes cost here; sub-layers of a kind count alike."""
        sequence, n_layers = self._sequences[0][0], self._model.n_layers
        self._report("measure passes", 0, 0)
        table = run_passes(CostTable.measure(sequence, _SIZES, _REPETITIONS))
        without = [tuple(range(kind, 2 * n_layers, 2)) for kind in (0, 1)]
        attention, mlp = ((1 - cost) / n_layers for cost in self._cost(without))
        rows = [table.ms(n) / table.ms(1) for n in range(1, max(_SIZES) + 1)]
        return StepCosts(attention, mlp, rows)

    def measured(self, off: SkipKey, costs: StepCosts) -> SkipFinding:
        """Returns a set with its own cost, which until then was put together from its parts."""
        cost, acceptance = self._cost([off])[0], self.acceptance(off, True)
        cost = min(round(cost, 4), 1.0)
        return SkipFinding(off, acceptance, cost, round(speedup(acceptance, cost, costs.rows), 4))

    def _held(
        self, sequence: TokenSequence, prompt: list[int], output: list[int], gates: list[bool]
    ) -> np.ndarray[Any, np.dtype[np.bool_]]:
        chunk = [prompt[-1], *output[:-1]]
        rows = sequence.forward(
            TokenTree.chain(chunk), range(len(chunk)), with_logits=False, layer_gates=gates
        )
        return np.asarray(rows.stats.argmax == np.array(output))

    def _cost(self, sets: Sequence[SkipKey]) -> list[float]:
        """Returns the cost of a pass over one row without each of ``sets``, in whole passes."""
        sequence = self._sequences[0][0]
        ratios: list[list[float]] = [[] for _ in sets]
        for _ in range(_REPETITIONS):
            ms = [self._step_ms(sequence, off) for off in ((), *sets, ())]
            for found, own in zip(ratios, ms[1:-1], strict=True):
                found.append(2 * own / (ms[0] + ms[-1]))
        return [statistics.median(found) for found in ratios]

    def _step_ms(self, sequence: TokenSequence, off: SkipKey) -> float:
        return sequence.forward(
            TokenTree.chain([_ANY_TOKEN]), (0,), with_logits=False, layer_gates=self._gates(off)
        ).ms

    def _gates(self, off: SkipKey) -> list[bool]:
        return [i not in off for i in range(2 * self._model.n_layers)]
