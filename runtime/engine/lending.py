"""Sequences lent to whoever has passes computed, beside the requests that write text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.engine.request import lent
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.prefill import check_fits
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.session_memory import TARGET
from edgedec.runtime.text.prompt import Prompt

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Lending:
    """Lends an engine's sequences. pool: where they are from. scheduler: computes their passes."""

    loaded: LoadedModel
    pool: SequencePool
    scheduler: Scheduler

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the ids of ``prompt``."""
        return self.loaded.encoder.encode(prompt)

    @contextmanager
    def sequence(self, text: Sequence[int]) -> Iterator[TokenSequence]:
        """Lends the sequence of a finished request that holds most of ``text``."""
        with lent(self.pool, self.scheduler, text) as sequence:
            yield sequence

    def run(
        self,
        tokens: Sequence[int],
        steps: Callable[[TokenSequence], Passes[T]],
        is_recalled: bool = True,
        n_new: int = 0,
    ) -> T:
        """Returns what ``steps`` returns for a sequence lent for ``tokens``.

        Args:
            is_recalled: The sequence holds the longest known prefix of ``tokens``.
            n_new: Tokens that must fit the context besides ``tokens``.

        Raises:
            SessionError: ``tokens`` is empty or does not fit the context.
        """
        check_fits(tokens, self.loaded.context - n_new, self.loaded.model.n_token_ids)
        with self.sequence(tokens) as sequence:
            if is_recalled:
                with self.scheduler.exclusive():
                    self.loaded.memory.recall(TARGET, sequence, tokens)
            return self.scheduler.run(steps(sequence))
