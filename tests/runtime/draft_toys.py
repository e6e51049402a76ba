"""Toys of speculation: drafters that know or mislead, a mask, a stream over them, enumeration."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import Capabilities
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.drafting.draft_tree import ROOT, DraftTree
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt, RoundOutcome
from edgedec.runtime.engine.request import Request
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sampling.token_mask import TokenMask
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.text_stream import TextStream

from .conftest import OnePool, Row, ToyModel, ToySession, prefix_of

Grow = Callable[[np.random.Generator, Sequence[int], Budget], DraftTree]
_T = TypeVar("_T")
VOCAB = 60
PROMPT = [3, 14, 15, 9, 2, 6]
GREEDY = SamplingConfig()
SAMPLINGS = [
    GREEDY,
    SamplingConfig(temperature=1.0),
    SamplingConfig(temperature=0.8, top_k=7),
    SamplingConfig(temperature=1.2, top_p=0.8, min_p=0.02),
    SamplingConfig(repetition_penalty=1.5),
    SamplingConfig(temperature=0.9, presence_penalty=0.8, frequency_penalty=0.5),
    SamplingConfig(temperature=0.9, logit_bias={7: 3.0, 8: float("-inf")}, top_k=20),
]


class StatsModel(ToyModel):
    """A `ToyModel` that gives statistics alone where nobody wants logits."""

    def rows_of(self, wanted: Pass) -> Rows:
        rows = super().rows_of(wanted)
        logits = rows.logits if wanted.with_logits else rows.logits[:0]
        return Rows(logits, {}, RowStats.of(rows.logits))


HIDDEN_LAYERS, HEAD_WIDTH = (1, 3), 4
"""Of what a `ToyHead` has as features."""


class ToyHead(ToyModel):
    """A draft head. reads: of every row that was computed, the tokens up to it and its features.

    n_lights: light heads that it consists of; they see tokens if there is room for their features.
    is_masked: its passes are over blocks.
    """

    def __init__(
        self, vocab_size: int, n_features: int = 0, n_lights: int = 0, is_masked: bool = False
    ) -> None:
        super().__init__(vocab_size)
        n_features = n_features or (len(HIDDEN_LAYERS) + 1) * HEAD_WIDTH
        self.n_layers = n_lights or 1
        self.capabilities = Capabilities(
            trees=not is_masked,
            blocks=is_masked,
            gates=n_lights > 0,
            hidden=() if is_masked or (n_lights and n_features == HEAD_WIDTH) else (1,),
            features=n_features,
        )
        self.reads: list[tuple[tuple[int, ...], Row]] = []

    def rows_of(self, wanted: Pass) -> Rows:
        rows, new = super().rows_of(wanted), range(wanted.n_known, len(wanted.tree))
        features = wanted.features
        if features is None:  # its cost is being measured
            features = np.zeros((len(new), self.capabilities.features), np.float32)
        self.reads += [
            (tuple(prefix_of(wanted, i)), row) for i, row in zip(new, features, strict=True)
        ]
        if self.capabilities.blocks:
            return rows
        return Rows(rows.logits, {1: np.stack([toy_output(row) for row in features])})


class LayeredToy(ToyModel):
    """A model of four layers, of which some may run alone."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.n_layers = 4
        self.capabilities = Capabilities(True, gates=True, entry=True, hidden=HIDDEN_LAYERS)

    def rows_of(self, wanted: Pass) -> Rows:
        tokens = np.array(wanted.tree.tokens[wanted.n_known :], np.float32)
        hidden = {i: np.outer(tokens, i + np.arange(HEAD_WIDTH)) + 1 for i in wanted.hidden_layers}
        return Rows(super().rows_of(wanted).logits, hidden)


def toy_output(features: Row) -> Row:
    """Returns what a `ToyHead` makes of a row, whatever its token."""
    parts: Row = features.reshape(-1, HEAD_WIDTH).sum(axis=0) / 2 + 1
    return parts


class StatsSession(ToySession):
    """A sequence of a `StatsModel` of its own."""

    def __init__(
        self,
        vocab_size: int,
        context: int = 256,
        rule: Callable[[Sequence[int]], Row] | None = None,
    ) -> None:
        super().__init__(vocab_size, context, model=StatsModel(vocab_size, rule))


class ToyDrafter:
    """Proposes what ``grow`` makes of the true continuation, and keeps a diary.

    Args:
        truth: prompt and output of plain decoding.
    """

    name = "toy"
    hidden_layers = ()

    def __init__(self, truth: Sequence[int], grow: Grow, seed: int = 0) -> None:
        self._truth = list(truth)
        self._grow = grow
        self._rng = np.random.default_rng(seed)
        self.begun: list[list[int]] = []
        self.ended: list[list[int]] = []
        self.outcomes: list[RoundOutcome] = []
        self.is_closed = False

    def begin(self, prompt: DraftPrompt) -> ToyDrafter:
        self.begun.append(list(prompt.tokens))
        return self

    def propose(self, context: DraftContext, budget: Budget) -> DraftTree:
        return self._grow(self._rng, self._truth[len(context.tokens) :], budget)

    def observe(self, context: DraftContext, outcome: RoundOutcome) -> None:
        self.outcomes.append(outcome)

    def end(self, tokens: Sequence[int]) -> None:
        self.ended.append(list(tokens))

    def close(self) -> None:
        self.is_closed = True


def right(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
    tree = DraftTree()
    tree.add_chain(truth[: min(budget.depth, budget.n_nodes)], 0.9, "toy")
    return tree


def wrong(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
    return right(rng, [token ^ 1 for token in truth], budget)


def half_right(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
    return right(rng, [token ^ int(rng.random() < 0.5) for token in truth], budget)


def nothing(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
    return DraftTree()


def bush(rng: np.random.Generator, truth: Sequence[int], budget: Budget) -> DraftTree:
    """Returns a random tree of few different tokens, with some of the truth hidden in it."""
    tree = DraftTree()
    n_nodes = int(rng.integers(0, budget.n_nodes + 1))
    deep_or_wide = rng.choice([0.0, 0.5, 1.0])
    while len(tree) < n_nodes:
        chain = rng.random() < deep_or_wide
        parent = len(tree) - 1 if chain else int(rng.integers(-1, len(tree)))
        depth = 0 if parent == ROOT else tree.nodes[parent].depth
        if depth >= budget.depth:
            parent, depth = ROOT, 0
        is_true = rng.random() < 0.6 and depth < len(truth)
        token = truth[depth] if is_true else int(rng.integers(0, 40))
        n_before = len(tree)
        tree.add(token, parent, float(rng.random()), rng.choice(["a", "b"]))
        if len(tree) == n_before:
            n_nodes -= 1
    return tree


class ToyMask:
    """Allows a third of the tokens, depending on all before; it refuses forbidden paths."""

    is_free = False

    def __init__(self, vocab_size: int) -> None:
        self._ids = np.arange(vocab_size)
        self._tokens: list[int] = []

    def begin(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)

    def row_after(self, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        reached = list(self._tokens)
        for token in tokens:
            assert self._row(reached)[token]
            reached.append(token)
        return self._row(reached)

    def accept(self, token: int) -> None:
        assert self._row(self._tokens)[token]
        self._tokens.append(token)

    @property
    def is_finished(self) -> bool:
        return False

    def forced(self) -> Sequence[int]:
        return []

    def _row(self, tokens: Sequence[int]) -> npt.NDArray[np.bool_]:
        return (self._ids + sum(tokens)) % 3 == 0


class Numerals:
    """A detokenizer: every token is its number and a blank."""

    def push(self, token: int) -> str:
        return f"{token} "

    def flush(self) -> str:
        return ""


def open_stream(
    session: TokenSequence,
    prompt: Sequence[int],
    config: GenerationConfig,
    strategy: DecodingStrategy | None = None,
    mask: TokenMask | None = None,
) -> Stream:
    """Returns a stream as the engine makes it."""
    state = DecodeState.start(session, prompt, config, frozenset(config.stop_token_ids), mask)
    request = Request(strategy or Plain(), time.perf_counter(), 0.0, OnePool(session), Scheduler())
    return Stream(request, state, TextStream(Numerals(), config.stop))


def generate(
    session: TokenSequence,
    prompt: Sequence[int],
    config: GenerationConfig,
    strategy: DecodingStrategy | None = None,
    mask: TokenMask | None = None,
) -> GenerationResult:
    """Returns the whole output."""
    stream = open_stream(session, prompt, config, strategy, mask)
    list(stream)
    return stream.result


def check_sums(result: GenerationResult) -> None:
    """Asserts what must hold of the counters of any output."""
    stats = result.stats
    assert stats.n_rounds == stats.n_correction + stats.n_bonus <= stats.n_passes
    n_of_passes = stats.n_accepted + stats.n_passes + stats.n_copied
    assert result.n_new_tokens == 1 + stats.n_carried + n_of_passes - stats.n_discarded
    assert stats.n_pass_tokens == result.n_new_tokens - 1 - stats.n_carried
    assert stats.n_carried <= stats.n_confirmed <= stats.n_provisional
    assert min(stats.draft_ms, stats.verify_ms) >= 0
    parts = [*stats.by_drafter().values(), *stats.by_depth()]
    for part in (*parts, *(count for counts in stats.drafted.values() for count in counts)):
        assert 0 <= part.n_accepted <= part.n_evaluated <= part.n_proposed
    for name in ("n_proposed", "n_evaluated", "n_accepted"):
        total = getattr(stats, name)
        assert sum(getattr(part, name) for part in stats.by_drafter().values()) == total
        assert sum(getattr(part, name) for part in stats.by_depth()) == total
    n_drafted = sum(origin != "target" for origin in result.origins)
    assert stats.n_accepted - stats.n_discarded <= n_drafted <= stats.n_accepted


class Script:
    """Random decisions taken as written, with their probability; past the script the first."""

    def __init__(self, script: Sequence[int]) -> None:
        self._script = script
        self.taken: list[int] = []
        self.weight = 1.0
        self.others: list[tuple[int, ...]] = []  # scripts that part from this one

    def accepts(self, position: int, i_sibling: int, probability: float) -> bool:
        assert 0 <= probability <= 1
        return self.draws(position, np.array([1 - probability, probability])) == 1

    def draws(self, position: int, probs: npt.NDArray[np.float64]) -> int:
        assert (probs >= 0).all()
        assert abs(probs.sum() - 1) < 1e-9
        possible = np.flatnonzero(probs).tolist()
        i = len(self.taken)
        if i < len(self._script):
            chosen = self._script[i]
        else:
            chosen = possible[0]
            self.others += [(*self.taken, other) for other in possible[1:]]
        self.taken.append(chosen)
        self.weight *= float(probs[chosen])
        return int(chosen)


def every_way(run: Callable[[Script], _T]) -> Iterator[tuple[float, _T]]:
    """Yields each outcome of ``run`` with its probability, whatever it decides by its script."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        script = Script(scripts.pop())
        outcome = run(script)
        yield script.weight, outcome
        scripts += script.others
