"""The contract of decoding methods, and the state they step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError
from edgedec.models.graph import N_TOP
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.sampling.logprobs import TokenLogprob, token_logprob
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.repeats import Repeats
from edgedec.runtime.sampling.sampling import (
    History,
    Survivors,
    choose,
    choose_by_surprise,
    edit,
    greedy,
    truncate,
)
from edgedec.runtime.sampling.token_mask import Allowed, TokenMask
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.prefill import HiddenStates
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence

if TYPE_CHECKING:
    from edgedec.runtime.sampling.alignment import Alignment

TARGET = "target"
"""Origin of tokens that no drafter proposed."""

ONE_TARGET = (TARGET,)
"""Origins of a step that gives one such token."""


@dataclass
class DecodeState:
    """One generation in progress.

    tokens: the prompt and everything emitted. All but the last few are in the KV cache of
        ``sequence``, which alone knows how many.
    mask: the grammar the output has to follow. alignment: weighs what it allows.
    rows: of the pass that ended prefill, until the first step consumes them; row 0 is meant.
    clock: what the method's own timings are read from.
    n_prompt: how many of ``tokens`` are the prompt.
    most_tokens: most tokens of the text: those of the context, and one more that needs no row.
    is_watched: statistics of the row that chose the newest token are kept, in ``chosen_by``.
    prediction: tokens of the text that the output is expected to repeat, with changes.
    logprobs: of each emitted token, if the request asks for them. plain_tokens: ``tokens``, those
        of a source by their own ids, as drafters may find them again in the output.
    """

    sequence: TokenSequence
    tokens: list[int]
    config: GenerationConfig
    history: History
    stats: DecodeStats
    stop_token_ids: frozenset[int] = frozenset()
    mask: TokenMask | None = None
    alignment: Alignment | None = None
    rows: Rows | None = None
    clock: BusyClock = field(default_factory=BusyClock)
    prediction: Sequence[int] = ()
    n_prompt: int = field(init=False)
    plain_tokens: list[int] = field(init=False)
    is_watched: bool = False
    chosen_by: tuple[RowStats, int] | None = field(default=None, init=False)
    logprobs: list[TokenLogprob] = field(default_factory=list, init=False)
    most_tokens: int = field(init=False)
    _is_always_edited: bool = field(init=False)
    _always_needs_logits: bool = field(init=False)
    _choosers: dict[int, tuple[RowStats, int]] = field(default_factory=dict, init=False)
    _logprobs: dict[int, TokenLogprob] = field(default_factory=dict, init=False)
    _allowed: dict[tuple[int, ...], Allowed | None] = field(default_factory=dict, init=False)
    _mus: dict[int, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.n_prompt = len(self.tokens)
        self.plain_tokens = self.tokens
        if self.sequence.n_source_of(self.tokens):
            self.plain_tokens = [token % self.sequence.vocab_size for token in self.tokens]
        self.most_tokens = self.sequence.context + (not self.sequence.model.capabilities.blocks)
        self._is_always_edited = self.sampling.is_editing
        n_top = self.config.logprobs or 0
        is_drawn = not self.sampling.is_greedy
        self._always_needs_logits = self._is_always_edited or is_drawn or n_top > N_TOP
        self._mus[self.n_prompt] = 2 * self.sampling.mirostat_tau

    @classmethod
    def start(
        cls,
        sequence: TokenSequence,
        prompt: Sequence[int],
        config: GenerationConfig,
        stop_token_ids: frozenset[int] = frozenset(),
        mask: TokenMask | None = None,
        breakers: frozenset[int] = frozenset(),
        alignment: Alignment | None = None,
        prediction: Sequence[int] = (),
    ) -> Self:
        """Returns the state of an output that is to follow ``prompt``.

        breakers: tokens that end repetitions. alignment: see `Alignment`. prediction: see
            `DraftPrompt`.
        """
        written = prompt[sequence.n_source_of(prompt) :]
        if mask is not None:
            mask.begin(written)
        is_ordered = config.sampling.is_ordered
        history = History(written, Repeats(written, breakers) if is_ordered else None)
        state = cls(
            sequence, list(prompt), config, history, DecodeStats(), stop_token_ids, mask, alignment
        )
        state.prediction = prediction
        return state

    @property
    def sampling(self) -> SamplingConfig:
        return self.config.sampling

    @property
    def n_left(self) -> int:
        """Tokens that may still be emitted: by the request, and by the room in the context."""
        n_asked = self.n_prompt + self.config.max_new_tokens
        return min(n_asked, self.most_tokens) - len(self.tokens)

    @property
    def is_edited(self) -> bool:
        """Something comes between the model's logits and the choice: bias, penalties, a mask."""
        if self._is_always_edited or self.mask is None:
            return self._is_always_edited
        return not self.mask.is_free

    @property
    def needs_logits(self) -> bool:
        """Whether rows must have logits; their statistics are enough otherwise."""
        return self._always_needs_logits or (self.mask is not None and not self.mask.is_free)

    def take_rows(self) -> Rows | None:
        """Returns the rows that prefill left, once."""
        rows, self.rows = self.rows, None
        return rows

    def pick_from(self, rows: Rows, index: int, noise: Noise, path: Sequence[int] = ()) -> int:
        """Returns the token that plain decoding would emit after ``tokens`` and ``path``.

        Args:
            index: Which of ``rows`` is the one after ``path``.
            path: Drafted tokens, taken to be emitted.
        """
        position = len(self.tokens) + len(path)
        if self.is_watched:
            self._choosers[position] = self._chooser(rows, index, path)
        if rows.row_stats is not None and not self.needs_logits:
            token = _likeliest(rows.row_stats, index)
        else:
            token = self._choose(self._edited(rows, index, path), noise, position)
            if self.alignment is not None:
                self.alignment.chose(path, token, float(rows.logits[index][token]))
        if self.config.logprobs is not None:
            self._logprobs[position] = token_logprob(rows, index, token, self.config.logprobs)
        return token

    def _chooser(self, rows: Rows, index: int, path: Sequence[int]) -> tuple[RowStats, int]:
        """Returns statistics of the tokens that may be chosen, and which row they are of."""
        allowed = self.allowed_after(path)
        if allowed is None or not len(rows.logits):
            return rows.stats, index
        return RowStats.of(rows.logits[index : index + 1][:, allowed]), 0

    def _choose(self, values: npt.NDArray[Any], noise: Noise, position: int) -> int:
        if not self.sampling.mirostat:
            return choose(values, self.sampling, noise, position)
        # A path is walked token by token, each the choice at its place.
        token, self._mus[position + 1] = choose_by_surprise(
            values, self.sampling, self._mus[position], noise, position
        )
        return token

    def survivors_from(self, rows: Rows, index: int, path: Sequence[int] = ()) -> Survivors:
        """Returns the tokens plain decoding may emit after ``tokens`` and ``path``, with scores.

        Arguments as for `pick_from`.
        """
        if rows.row_stats is not None and not self.needs_logits:
            return _only(_likeliest(rows.row_stats, index))
        values = self._edited(rows, index, path)
        return _only(greedy(values)) if self.sampling.is_greedy else truncate(values, self.sampling)

    def allowed_after(self, path: Sequence[int]) -> Allowed | None:
        """Returns what the mask allows after ``tokens`` and ``path``; None allows all."""
        if self.mask is None or not self.stop_token_ids.isdisjoint(path):
            return None  # nothing after a stop token is emitted
        key = tuple(path)
        if key not in self._allowed:
            self._allowed[key] = self.mask.row_after(path)
        return self._allowed[key]

    def append(self, token: int) -> None:
        """Records an emitted token."""
        if self.is_watched:
            self.chosen_by = self._choosers.pop(len(self.tokens), None)
        if self.config.logprobs is not None:
            self.logprobs.append(self._logprobs.pop(len(self.tokens)))
        self.tokens.append(token)
        if self.plain_tokens is not self.tokens:
            self.plain_tokens.append(token)
        self.history.add(token)
        if self.mask is not None:
            self.mask.accept(token)
            self._allowed.clear()
        if self.alignment is not None:
            self.alignment.accept(token)

    def _edited(self, rows: Rows, index: int, path: Sequence[int]) -> npt.NDArray[Any]:
        row: npt.NDArray[Any] = rows.logits[index]
        if not self.is_edited:
            return row
        with self._replayed(path):
            values = edit(row, self.sampling, self.history, self.allowed_after(path))
        if self.alignment is None:
            return values
        return self.alignment.weighed(path, row, self.allowed_after(path), values)

    @contextmanager
    def _replayed(self, path: Sequence[int]) -> Iterator[None]:
        """The history as it would be had ``path`` been emitted."""
        for token in path:
            self.history.add(token)
        try:
            yield
        finally:
            for token in path:
                self.history.remove(token)


def _likeliest(stats: RowStats, index: int) -> int:
    if not math.isfinite(total := stats.log_sum_exp.item(index)):
        raise SessionError(
            f"the logits sum up to {total}, expected a number; the model's weights are broken: "
            "export it again"
        )
    return stats.argmax.item(index)


def _only(token: int) -> Survivors:
    return Survivors(np.array([token], np.int64), np.zeros(1))


class StepResult(NamedTuple):
    """What a step emits: at least one token, each already the target model's choice.

    origins: for each token the name of the drafter that proposed it, or "target".
    """

    tokens: tuple[int, ...]
    origins: tuple[str, ...]


class Decoding(ABC):
    """A decoding method's part in one request."""

    @abstractmethod
    def step(self, noise: Noise) -> Passes[StepResult]:
        """Returns the next tokens; the caller appends those it emits to the state.

        The KV cache may then hold tokens that the caller did not emit, until `end`. A step
        follows another only after all tokens of the first were emitted.
        """

    @abstractmethod
    def end(self) -> None:
        """The output ended with exactly the state's tokens.

        Every sequence is rewound so that its tokens are a prefix of them. Called once, however the
        output ended; afterwards only `catch_up`, `explain` and `summary` are.
        """

    def catch_up(self, target: TokenSequence) -> Passes[int]:
        """Computes what models missed of the finished output; returns how many tokens.

        target: a sequence of the target model that holds as much of the output as any.
        """
        return 0
        yield  # makes it a step without passes

    def explain(self) -> list[str]:
        """Returns what was decided, a line each."""
        return []

    def explain_rounds(self) -> list[str]:
        """Returns what was decided in each round, and why; nothing for methods that do not."""
        return []

    def summary(self) -> dict[str, Any]:
        """Returns what happened besides the counters, JSON-ready."""
        return {}


class DecodingStrategy(ABC):
    """A way to get the next tokens: what its requests share."""

    name: str
    """What users call the method."""

    is_lossless: bool
    """The tokens are those of plain decoding, or follow the same distribution."""

    takes_turns: bool = False
    """Several models write, and compute what they missed of the text later."""

    is_in_order: bool = True
    """Tokens are found from left to right."""

    needs_prefill: bool = True
    """The prompt is in the KV cache when `begin` is called."""

    @property
    def hidden_layers(self) -> Sequence[int]:
        """Layers whose hidden states of the prompt `begin` is given."""
        return ()

    @property
    def with_mtp(self) -> bool:
        """The row behind the prompt comes with what light heads in the graph say."""
        return False

    @abstractmethod
    def begin(self, state: DecodeState, hidden: HiddenStates) -> Decoding:
        """Returns the part of a request whose prompt has been prefilled.

        hidden: see `DraftPrompt`.
        """

    def close(self) -> None:
        """Releases whatever the method holds besides the target model."""
        return
