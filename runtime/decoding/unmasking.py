"""Decoding with a model that fills masks in: each pass decides some tokens, anywhere in the output.

Source: LLaDA (arXiv 2502.09992), low-confidence remasking in blocks. The output begins as masks.
A pass says how likely each masked token is, and those the model is surest of are decided for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError, PromptTooLongError
from edgedec.runtime.config.unmasking import UnmaskConfig
from edgedec.runtime.decoding.strategy import (
    TARGET,
    DecodeState,
    Decoding,
    DecodingStrategy,
    StepResult,
)
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import choose
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree


@dataclass(frozen=True, slots=True)
class MaskedModel:
    """What a model that fills masks in states of itself; see `ModelConfig`."""

    mask_token: int
    predicts_next: bool = False


class Canvas:
    """A text whose output is masked at first, and decided token by token.

    tokens: of prompt and output. masked: places of the output that are not decided yet.
    """

    def __init__(self, model: MaskedModel, prompt: Sequence[int], n_new: int) -> None:
        self.model = model
        self.tokens = [*prompt, *[model.mask_token] * n_new]
        self.masked = set(range(len(prompt), len(self.tokens)))

    def decide(self, place: int, token: int) -> None:
        """Puts ``token`` at ``place`` for good."""
        self.tokens[place] = token
        self.masked.remove(place)

    def row_of(self, place: int) -> int:
        """Returns the place whose row has the logits of ``place``."""
        return place - int(self.model.predicts_next)


@dataclass(frozen=True, eq=False)
class Guesses:
    """What a pass says of masked tokens.

    places: in the text, rising. tokens: what would be decided there. probabilities: of these.
    stats: of the rows, the mask token among what they list.

    Shapes: probabilities [n] float64.
    """

    places: Sequence[int]
    tokens: Sequence[int]
    probabilities: npt.NDArray[np.float64]
    stats: RowStats

    def at(self, indices: Iterable[int]) -> dict[int, int]:
        """Returns some of the guesses: place -> token."""
        return {self.places[i]: self.tokens[i] for i in indices}


class UnmaskRule(Protocol):
    """Which tokens are decided. One object serves one output."""

    def choose(self, guesses: Guesses, n_due: int, progress: float) -> Mapping[int, int]:
        """Returns what is decided, one or more: place -> token.

        Args:
            n_due: How many that are at an even pace.
            progress: Share of the block's steps that were done before, below 1.
        """


class CanvasReading(Protocol):
    """How passes go over a canvas. One object serves one output."""

    def next_pass(self, canvas: Canvas, places: Sequence[int], with_logits: bool) -> Pass:
        """Returns the pass whose rows have the logits of ``places``, in this order."""

    def keep(self, canvas: Canvas) -> None:
        """Keeps what later passes need of the latest one; nothing was decided since."""


class WholeReading:
    """Every pass computes the whole text."""

    def __init__(self, sequence: TokenSequence) -> None:
        self._sequence = sequence

    def next_pass(self, canvas: Canvas, places: Sequence[int], with_logits: bool) -> Pass:
        """Returns a pass over all places."""
        tree = TokenTree.block(canvas.tokens, range(len(canvas.tokens)))
        logit_rows = [canvas.row_of(place) for place in places]
        return Pass(self._sequence, tree, logit_rows, with_logits=with_logits)

    def keep(self, canvas: Canvas) -> None:
        """Keeps nothing."""


class HighestConfidence:
    """Decides as many as are due, those of the highest probability; of equals the first."""

    def choose(self, guesses: Guesses, n_due: int, progress: float) -> Mapping[int, int]:
        return guesses.at(likeliest(guesses.probabilities, n_due))


def likeliest(scores: npt.NDArray[np.float64], n: int) -> list[int]:
    """Returns the indices of the ``n`` largest scores; of equals the first."""
    order: list[int] = np.argsort(-scores, kind="stable")[:n].tolist()
    return order


class Unmasking(DecodingStrategy):
    """Decoding in which each pass decides some of the masked tokens."""

    is_in_order = False
    needs_prefill = False

    def __init__(
        self,
        model: MaskedModel,
        setting: UnmaskConfig,
        make_rule: Callable[[], UnmaskRule] = HighestConfidence,
        make_reading: Callable[[TokenSequence], CanvasReading] = WholeReading,
    ) -> None:
        self.name = str(setting)
        self.is_lossless = setting.is_plain
        self.model = model
        self.setting = setting
        self.make_rule = make_rule
        self.make_reading = make_reading

    def begin(self, state: DecodeState, hidden: HiddenStates) -> UnmaskDecoding:
        """Returns the part of a request.

        Raises:
            PromptTooLongError: The prompt leaves no room for a token.
            ConfigError: There are fewer steps than blocks.
        """
        if state.n_left < 1:
            raise PromptTooLongError(state.n_prompt, state.sequence.context - 1)
        return UnmaskDecoding(self, state)


class UnmaskDecoding(Decoding):
    """One request, decided block by block. Tokens are emitted when none before them is masked."""

    def __init__(self, method: Unmasking, state: DecodeState) -> None:
        self._state = state
        self._canvas = Canvas(method.model, state.tokens, state.n_left)
        self._rule = method.make_rule()
        self._reading = method.make_reading(state.sequence)
        self._blocks = plan_blocks(state.n_prompt, state.n_left, method.setting)
        self._block = self._blocks.pop(0)
        self._n_done = 0  # steps of the block
        self._n_rows = 0
        state.sequence.truncate(0)
        state.stats.n_prefill_tokens = state.n_prompt

    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next tokens: those before the first masked one, when there are some."""
        state, canvas = self._state, self._canvas
        start = len(state.tokens)
        while start in canvas.masked:
            yield from self._decide_some(noise)
        stop = min(canvas.masked, default=len(canvas.tokens))
        state.stats.n_pass_tokens += stop - start
        return StepResult(tuple(canvas.tokens[start:stop]), (TARGET,) * (stop - start))

    def end(self) -> None:
        """Rows of one text are of no use to another: each depends on all tokens behind it, too."""
        if not self._state.sequence.is_closed:
            self._state.sequence.truncate(0)

    def summary(self) -> dict[str, Any]:
        """Returns how many rows all passes computed, JSON-ready."""
        return {"n_rows": self._n_rows}

    def explain(self) -> list[str]:
        """Returns what all passes came to."""
        n_passes = self._state.stats.n_passes
        n_decided = len(self._canvas.tokens) - self._state.n_prompt - len(self._canvas.masked)
        return [f"{n_passes} passes over {self._n_rows} rows decided {n_decided} tokens"]

    def _decide_some(self, noise: Noise) -> Passes[None]:
        """Decides tokens of the block by one pass; goes on to the next block if none is left."""
        state, block = self._state, self._block
        places = [place for place in block.places if place in self._canvas.masked]
        pass_ = self._reading.next_pass(self._canvas, places, state.needs_logits)
        rows = yield pass_
        self._reading.keep(self._canvas)
        state.stats.n_passes += 1
        self._n_rows += pass_.n_rows
        guesses = self._guesses(rows, places, noise)
        n_due = block.n_due(self._n_done)
        decided = self._rule.choose(guesses, n_due, self._n_done / block.n_steps)
        for place, token in decided.items():
            self._canvas.decide(place, token)
        self._n_done += 1
        if self._canvas.masked.isdisjoint(block.places) and self._blocks:
            self._block, self._n_done = self._blocks.pop(0), 0

    def _guesses(self, rows: Rows, places: Sequence[int], noise: Noise) -> Guesses:
        stats, mask_token = rows.stats, self._canvas.model.mask_token
        for row in range(len(places)):
            stats.check_sum(row)
        each = np.arange(len(places))
        if self._state.needs_logits:
            drawn = (self._draw(rows.logits[i], noise, place) for i, place in enumerate(places))
            tokens = np.fromiter(drawn, np.int64)
            logits = rows.logits[each, tokens].astype(np.float64)
        else:
            second = (stats.top_ids[:, 0] == mask_token).astype(np.int64)
            tokens = stats.top_ids[each, second]
            logits = stats.top_logits[each, second].astype(np.float64)
        probabilities = np.exp(logits - stats.log_sum_exp)
        return Guesses(places, tokens.tolist(), probabilities, stats)

    def _draw(self, row: npt.NDArray[np.float32], noise: Noise, place: int) -> int:
        """Returns the token that the seed's noise draws for ``place``, which is never the mask."""
        values = row.copy()
        values[self._canvas.model.mask_token] = -np.inf
        return choose(values, self._state.sampling, noise, place)


@dataclass(frozen=True, slots=True)
class Block:
    """Places that are decided before any behind them, in a number of steps."""

    places: range
    n_steps: int

    def n_due(self, n_done: int) -> int:
        """Returns how many are decided in the step after ``n_done``: the first have one more."""
        least, rest = divmod(len(self.places), self.n_steps)
        return max(1, least + (n_done < rest))


def plan_blocks(first: int, n_new: int, setting: UnmaskConfig) -> list[Block]:
    """Returns the blocks of an output of ``n_new`` tokens from place ``first`` on.

    Raises:
        ConfigError: There are fewer steps than blocks.
    """
    size = min(setting.block or n_new, n_new)
    starts = range(first, first + n_new, size)
    steps = setting.steps or n_new
    if steps < len(starts):
        raise ConfigError(
            f"unmask steps is {steps}, expected at least {len(starts)}, the number of blocks: ask "
            "for more steps or longer blocks"
        )
    least, rest = divmod(steps, len(starts))
    blocks = []
    for i, start in enumerate(starts):
        places = range(start, min(start + size, first + n_new))
        n_steps = len(places) if setting.steps is None else least + (i < rest)
        blocks.append(Block(places, min(n_steps, len(places))))
    return blocks
