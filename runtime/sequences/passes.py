"""What a step wants computed, and those who have it computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from edgedec.models.graph import Capabilities
from edgedec.runtime.sequences.pass_times import LONG_PASS, PassTimes
from edgedec.runtime.sequences.rows import Float32, OtherTexts, Rows
from edgedec.runtime.sequences.token_tree import TokenTree

T = TypeVar("T")


class PassModel(Protocol):
    """What a pass asks of a model; see `Model`."""

    @property
    def capabilities(self) -> Capabilities:
        """What the graph can do."""

    @property
    def n_layers(self) -> int:
        """Layers of the graph."""

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of each pass."""


class PassSequence(Protocol):
    """What a pass asks of the text that it is over; see `TokenSequence`."""

    @property
    def model(self) -> PassModel:
        """What computes it."""

    @property
    def state(self) -> Any:
        """What the model keeps of the text: its backend knows the type."""

    @property
    def times(self) -> PassTimes:
        """What passes took of late, its own among them."""

    written_s: float
    """When its latest short pass ended; for `PassTimes`."""

    @property
    def tokens(self) -> Sequence[int]:
        """Committed tokens."""

    @property
    def n_source(self) -> int:
        """Tokens of its source, see `source_tokens`; 0 while they are not committed."""

    @property
    def partial(self) -> Sequence[int]:
        """Tokens of which only the first layers are computed."""

    @property
    def pending(self) -> Any:
        """The pass that awaits its commit, for `put_back`."""

    def begin(self, pass_: Pass) -> None:
        """Checks a pass that is about to be computed."""

    def finish(self, pass_: Pass) -> None:
        """Learns that a pass was computed, which is pending then."""

    def put_back(self, pending: Any) -> None:
        """Takes back what `begin` did."""


class Pass(NamedTuple):
    """One pass of a model over a few tokens of one sequence. It commits nothing.

    logit_rows: indices into ``tree`` of the rows that are wanted, none below ``n_known``.
    hidden_layers: layers whose hidden states are wanted, of every new token.
    n_known: tokens that ``tree`` begins with and the pending pass computed already; a tree grows
        level by level that way, and only its new tokens cost time.
    with_logits: whether `Rows.logits` is wanted; statistics always are. Rows of logits that nobody
        wants are not copied.
    layer_gates: sub-layers that run: 2i is the attention of layer i, 2i + 1 its MLP; all when
        None. A pass that leaves some out may grow but not be committed, for its rows of the KV
        cache are incomplete.
    layers: layers that run, one after the other; all when None. A pass that stops early may be
        committed: its tokens are then *partial*, see `TokenSequence`. It may return the hidden
        states behind its last layer. A pass that begins later goes over the pending tree or the
        first partial tokens, whose rows of the layers before it keeps, and starts from ``entry``.
    entry: hidden states [n, hidden_size] of the n new tokens behind the layer before the first of
        ``layers``; None where that is layer 0.
    n_skipped: partial tokens between the committed ones and those of a pass that begins later:
        it looks at their predicted rows, and cannot be committed.
    features: what a draft head reads beside each of the n new tokens [n, F]; zeros when None.
    with_mtp: whether `Rows.mtp` is wanted, which takes time of its own.
    is_alone: no other sequence may share the pass, whose time is to be known.
    """

    sequence: PassSequence
    tree: TokenTree
    logit_rows: Sequence[int]
    hidden_layers: Sequence[int] = ()
    n_known: int = 0
    with_logits: bool = True
    layer_gates: Sequence[bool] | None = None
    layers: range | None = None
    entry: Float32 | None = None
    n_skipped: int = 0
    features: Float32 | None = None
    with_mtp: bool = False
    is_alone: bool = False

    @property
    def n_rows(self) -> int:
        """Tokens that the pass computes."""
        return len(self.tree) - self.n_known

    @property
    def n_past(self) -> int:
        """Tokens of the sequence before those of the pass."""
        sequence = self.sequence
        if self.layers is not None and self.layers.start:
            return len(sequence.tokens) + self.n_skipped
        return len(sequence.tokens) + len(sequence.partial)


def compute(passes: Sequence[Pass]) -> list[Rows]:
    """Returns the rows of passes over different sequences of one model, which are pending then.

    Raises:
        SessionError: A pass does not fit its sequence's context or pending pass, or one failed.
    """
    for pass_ in passes:
        pass_.sequence.begin(pass_)
    first = passes[0].sequence
    started_s = time.perf_counter()
    results = first.model.compute(passes)
    ended_s = time.perf_counter()
    ms = 1000 * (ended_s - started_s)
    n_all = longest = 0
    for pass_, rows in zip(passes, results, strict=True):
        n_rows = len(pass_.tree.tokens) - pass_.n_known
        n_all, longest = n_all + n_rows, max(longest, n_rows)
        if n_rows < LONG_PASS:
            pass_.sequence.written_s = ended_s
        pass_.sequence.finish(pass_)
        rows.ms = ms
    first.times.note(n_all, longest, ms)
    if len(passes) > 1:
        for pass_, rows in zip(passes, results, strict=True):
            rows.company = OtherTexts(len(passes) - 1, n_all - pass_.n_rows, longest)
    return results


def attempt(pass_: Pass) -> Rows | BaseException:
    """Returns the rows of a pass, or what went wrong, an interrupt included, for its step."""
    try:
        return compute((pass_,))[0]
    except BaseException as error:  # belongs to the step, which tidies up and lets it go on
        return error


def attempt_all(passes: Sequence[Pass]) -> list[Rows | BaseException]:
    """Returns for each pass its rows, computed together, or what went wrong with it.

    Raises:
        BaseException: An interrupt. No pass counts as begun.
    """
    pending = [pass_.sequence.pending for pass_ in passes]
    try:
        return [*compute(passes)]
    except BaseException as error:
        for pass_, before in zip(passes, pending, strict=True):
            pass_.sequence.put_back(before)
        if len(passes) == 1 and isinstance(error, Exception):
            return [error]
        if not isinstance(error, Exception):
            raise
    return [attempt(pass_) for pass_ in passes]  # whose fault it was shows alone


Passes = Generator[Pass, Rows, T]
"""A step: it yields the passes it wants, is sent their rows, and returns its result.

It never runs a pass itself. Whoever drives it may do other requests' passes in between.
"""


def run_passes(passes: Passes[T]) -> T:
    """Runs a step by itself and returns its result."""
    try:
        pass_ = next(passes)
        while True:
            outcome = attempt(pass_)
            if isinstance(outcome, BaseException):
                pass_ = passes.throw(outcome)
            else:
                pass_ = passes.send(outcome)
    except StopIteration as end:
        result: T = end.value
        return result


def while_idle(passes: Passes[T], is_over: Callable[[], bool]) -> Passes[T | None]:
    """Returns what a step does; None where, before one of its passes, ``is_over`` says so."""
    try:
        pass_ = next(passes)
        while not is_over():
            try:
                rows = yield pass_
            except BaseException as error:  # what went wrong is the step's
                pass_ = passes.throw(error)
            else:
                pass_ = passes.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        passes.close()
    return None
