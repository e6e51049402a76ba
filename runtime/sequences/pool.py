"""The sequences of one model in one engine: one for each request in progress, some idle ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from edgedec.runtime.sequences.model import Model
from edgedec.runtime.sequences.pass_times import PassTimes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.common_prefix import common_prefix

_MAX_IDLE = 2
"""More is not kept: what their texts left is in the prefix cache."""

_MAX_LEAVING = 4
"""Sequences that are dropped step by step; another one has to go at once."""

WORTH_KEEPING = 16
"""Tokens that are sooner computed anew than looked after."""


class SequencePool:
    """Lends sequences; an idle one keeps its text until it is lent for another.

    Whoever calls has the scheduler to itself, see `Scheduler.exclusive`: otherwise idle sequences
    may be emptied or filled meanwhile.

    Args:
        context: Most tokens of a sequence.
        on_drop: Called with a sequence before it is closed because enough are idle. The
            steps that it returns are taken one by one, between passes: see `tidy`.
    """

    def __init__(
        self,
        model: Model,
        context: int,
        on_drop: Callable[[TokenSequence], Iterator[None]] = lambda sequence: iter(()),
    ) -> None:
        self.model = model
        self.context = context
        self._on_drop = on_drop
        self._times = PassTimes()
        self._idle: list[TokenSequence] = []  # the one used last comes last
        self._lent: list[TokenSequence] = []
        self.leaving: deque[tuple[TokenSequence, Iterator[None]]] = deque()

    @property
    def latest(self) -> TokenSequence:
        """The sequence that was lent last, back or not."""
        return self._lent[-1] if self._lent else self.take_idle()

    def take(self, text: Sequence[int], group: str = "") -> TokenSequence:
        """Returns the idle sequence that holds most of the beginning of ``text``, or a new one.

        It is the caller's until `give_back`, and holds nothing of another group's text.
        """
        sequence = self._take_known(text, group) if self._idle else None
        if sequence is None:
            sequence = TokenSequence(self.model, self.context, self._times)
        sequence.group = group
        self._lent.append(sequence)
        return sequence

    def _take_known(self, text: Sequence[int], group: str) -> TokenSequence | None:
        """Takes the idle sequence that holds most of the beginning of ``text``.

        None if much of what it holds would be lost while others write, who had to wait for its
        copy: then it is dropped step by step.
        """
        # Of those alike the one used last, whose memory is warm.
        best = max(range(len(self._idle)), key=lambda i: (self._n_kept(i, text, group), i))
        n_lost = self._idle[best].n_tokens - max(0, self._n_kept(best, text, group))
        sequence = self._idle.pop(best)
        if self._lent and n_lost >= WORTH_KEEPING and not sequence.look_back:
            self._drop(sequence)
            return None
        if sequence.group != group:
            for _ in self._on_drop(sequence):
                pass
            sequence.truncate(0)
        return sequence

    def find(self, text: Sequence[int], but: TokenSequence) -> tuple[TokenSequence, int]:
        """Returns who holds most of the beginning of ``text``, and how many tokens.

        Of the group of ``but``, which itself does not count: it is returned where nobody does.
        """
        alike = [s for s in self.sequences if s is not but and s.group == but.group]
        n_known = [
            0 if s.is_closed else s.resting(min(s.n_exact, common_prefix(s.tokens, text)))
            for s in alike
        ]
        best = max(range(len(alike)), key=lambda i: n_known[i], default=None)
        return (but, 0) if best is None else (alike[best], n_known[best])

    @property
    def sequences(self) -> tuple[TokenSequence, ...]:
        """All that hold a text, the one used last comes last."""
        return (*(sequence for sequence, _ in self.leaving), *self._idle, *self._lent)

    def take_idle(self) -> TokenSequence:
        """Returns an idle sequence that nobody else has, the one used last; it stays idle."""
        if not self._idle:
            self._idle.append(TokenSequence(self.model, self.context, self._times))
        return self._idle[-1]

    def give_back(self, sequence: TokenSequence) -> None:
        """Takes a lent sequence back; giving it back again does nothing."""
        if sequence not in self._lent:
            return
        self._lent.remove(sequence)
        self._times.forget(sequence)
        if sequence.is_closed:
            return
        self._idle.append(sequence)
        if len(self._idle) > _MAX_IDLE:
            self._drop(self._idle.pop(0))

    def tidy(self) -> None:
        """Takes a step of dropping a sequence, if one is to be dropped."""
        if self.leaving:
            sequence, steps = self.leaving[0]
            if next(steps, self) is self:
                self.leaving.popleft()
                sequence.close()

    def _drop(self, sequence: TokenSequence) -> None:
        self.leaving.append((sequence, self._on_drop(sequence)))
        while len(self.leaving) > _MAX_LEAVING:
            self.tidy()

    def _n_kept(self, i: int, text: Sequence[int], group: str) -> int:
        """Returns how many tokens an idle sequence need not compute of ``text``."""
        sequence = self._idle[i]
        if sequence.group != group:
            return -1
        return sequence.reachable(common_prefix(sequence.tokens, text))

    def forget(self) -> None:
        """Empties the idle sequences."""
        for sequence in self._idle:
            sequence.truncate(0)
        self._close_leaving()

    def close(self) -> None:
        """Closes all sequences."""
        for sequence in (*self._idle, *self._lent):
            sequence.close()
        self._close_leaving()
        self._idle.clear()
        self._lent.clear()

    def _close_leaving(self) -> None:
        for sequence, _ in self.leaving:
            sequence.close()
        self.leaving.clear()
