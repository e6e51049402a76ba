"""What a model says of each token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.runtime.decoding.switching.paired_model import PairedModel
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence

_ROWS = 64  # asked for in one pass


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a model says of the token at a position. token: its likeliest."""

    signal: Signal
    token: int


def predictions(sequence: TokenSequence, text: Sequence[int], n_prompt: int) -> list[Prediction]:
    """Returns what the model says of each token after the prompt, given all before it."""
    model = PairedModel(sequence, n_prompt)
    predicted: list[Prediction] = []
    while len(predicted) < len(text) - n_prompt:
        n_rows = min(_ROWS, len(text) - n_prompt - len(predicted))
        stop = n_prompt + len(predicted) + n_rows - 1
        stats = run_passes(model.rows_after(text[:stop], n_rows, with_logits=False)).stats
        predicted += [Prediction(Signal.of(stats, i), int(stats.argmax[i])) for i in range(n_rows)]
    return predicted
