"""Prompts that are being read: one that begins alike waits for what they have in common."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.common_prefix import common_prefix

_WORTH_WAITING = 32
"""Tokens that are sooner computed twice."""

_POLL_S = 0.01
_STALLED_S = 1.0
"""A prompt that did not grow for so long is waited for no longer."""


class PromptsRead:
    """The prompts that requests are reading into KV caches right now."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._reading: dict[TokenSequence, tuple[Sequence[int], int]] = {}  # prompt and thread

    def begin(
        self, sequence: TokenSequence, prompt: Sequence[int], is_over: Callable[[], bool]
    ) -> None:
        """Notes that this thread reads ``prompt``, once nobody else computes its beginning.

        is_over: asked every few milliseconds; the wait ends where it says so.
        """
        with self._changed:
            n_before, grown_s = -1, time.perf_counter()
            while not is_over() and (other := self._ahead(sequence, prompt)) is not None:
                if other.n_tokens != n_before:
                    n_before, grown_s = other.n_tokens, time.perf_counter()
                elif time.perf_counter() - grown_s > _STALLED_S:
                    break
                self._changed.wait(_POLL_S)
            self._reading[sequence] = prompt, threading.get_ident()

    def end(self, sequence: TokenSequence) -> None:
        """Notes that a prompt is read, or given up; again does nothing."""
        if sequence in self._reading:
            with self._changed:
                self._reading.pop(sequence, None)
                self._changed.notify_all()

    def _ahead(self, sequence: TokenSequence, prompt: Sequence[int]) -> TokenSequence | None:
        """Returns the sequence whose reader is about to compute much that ``prompt`` begins with.

        This thread is none: it would wait for itself.
        """
        n_kept = common_prefix(sequence.tokens, prompt)
        for other, (text, thread) in self._reading.items():
            if thread == threading.get_ident() or other.group != sequence.group:
                continue
            if other is sequence or other.model is not sequence.model:
                continue
            n_common = common_prefix(text[:-1], prompt[:-1])
            if n_common - max(n_kept, other.n_tokens) >= _WORTH_WAITING:
                return other
        return None
