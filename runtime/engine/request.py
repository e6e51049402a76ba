"""What a stream needs besides the state of its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from edgedec.runtime.decoding.strategy import DecodeState, Decoding, DecodingStrategy
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.sequences.prompts_read import PromptsRead
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.text_stream import MakeText
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:
    from edgedec.runtime.decoding.prefilling import PromptPredictor


class Lender(Protocol):
    """Where a stream's sequence is from, as `SequencePool` is; asked by who has the turn."""

    def take(self, text: Sequence[int], group: str = "") -> TokenSequence:
        """Returns a sequence for ``text``."""

    def give_back(self, sequence: TokenSequence) -> None:
        """Takes it back."""


@dataclass(frozen=True, eq=False)
class Request:
    """What a stream needs to know besides its state.

    started_s: `time.perf_counter` when the caller asked.
    load_ms: passed on to the result.
    lender: of the state's sequence. scheduler: computes its passes.
    recall: called with the sequence and the prompt before its first pass; it may fill the KV cache
        with a prefix. prompts: those that other requests are reading.
    abandon: called with what ends a stream that its caller let go of without finishing it.
    new_text: makes what turns provisional tokens into text. codec: the model's tokenizer.
    predictor: what predicts rows of the prompt, where the bundle has that.
    """

    strategy: DecodingStrategy
    started_s: float
    load_ms: float
    lender: Lender
    scheduler: Scheduler
    on_progress: Progress | None = None
    recall: Callable[[TokenSequence, Sequence[int]], None] = lambda sequence, prompt: None
    prompts: PromptsRead = field(default_factory=PromptsRead)
    abandon: Callable[[Callable[[], None]], None] = lambda end: end()
    new_text: MakeText | None = None
    codec: Codec | None = None
    predictor: Callable[[], PromptPredictor | None] = lambda: None


@contextmanager
def lent(
    lender: Lender, scheduler: Scheduler, text: Sequence[int], group: str = ""
) -> Iterator[TokenSequence]:
    """Lends a sequence for ``text`` while the block runs, which may have passes computed."""
    with scheduler.exclusive():
        sequence = lender.take(text, group)
    try:
        yield sequence
    finally:
        with scheduler.exclusive():
            lender.give_back(sequence)


def end_part(
    decoding: Decoding | None, state: DecodeState, lender: Lender, n_kept: int | None = None
) -> None:
    """Ends a request's part everywhere. n_kept: tokens that stay in the KV cache, all when None."""
    try:
        if decoding is not None:
            decoding.end()
        if not state.sequence.is_closed:
            n_exact = state.sequence.n_exact  # what was predicted is nobody else's business
            state.sequence.rewind(n_exact if n_kept is None else min(n_kept, n_exact))
    finally:
        lender.give_back(state.sequence)
