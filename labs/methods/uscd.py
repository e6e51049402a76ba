"""USCD: where the model is unsure, take away what it would say without the prompt's examples.

Two texts go on side by side, in two rows of one pass: one behind the prompt, one behind a *lame*
prompt. Greedy, and never the text of plain decoding.

Source: USCD (arXiv:2409.05923): the standard deviation of the next token's probabilities decides
    where to contrast. That tokens have to be plausible is contrastive decoding's (Li et al., 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.passes import Pass, compute, run_passes
from edgedec.runtime.sequences.prefill import caught_up
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.text_stream import maker_of_texts

USCD = "uscd"
Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Contrast:
    """How to contrast.

    weight: of the lame prompt's log-probabilities. threshold: contrast where the standard deviation
    of the probabilities is below this share of a certain choice's. plausible: least probability of
    a token that may be chosen, as a share of the likeliest one's.
    """

    weight: float = 0.3
    threshold: float = 0.8
    plausible: float = 0.1

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and 0 <= self.threshold <= 1 and 0 < self.plausible <= 1):
            raise ConfigError(
                f"{self} makes no sense: weight is at least 0, threshold and plausible at most 1"
            )

    def __str__(self) -> str:
        return (
            f"{USCD}:weight={self.weight:g},threshold={self.threshold:g},"
            f"plausible={self.plausible:g}"
        )

    @classmethod
    def of(cls, label: str) -> Self | None:
        """Returns the setting written as ``uscd:weight=0.3``; None if the text is another's.

        Raises:
            ConfigError: A part of it is none.
        """
        name, _, rest = label.partition(":")
        if name != USCD:
            return None
        given = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
        try:
            return cls(**{key: float(value) for key, value in given.items()})
        except (TypeError, ValueError):
            raise ConfigError(f"got the setting {label!r}, expected {cls()}") from None

    def choose(self, row: npt.NDArray[Any], lame: npt.NDArray[Any]) -> tuple[int, bool]:
        """Returns the next token, and whether it was contrasted.

        Shapes: row, lame [V] logits.
        """
        log_p = _log_softmax(row)
        best = int(log_p.argmax())
        spread = float(np.exp(log_p).std()) * len(row) / np.sqrt(len(row) - 1)
        if spread >= self.threshold:
            return best, False
        plausible = np.flatnonzero(log_p >= log_p[best] + np.log(self.plausible))
        scores = log_p[plausible] - self.weight * _log_softmax(lame)[plausible]
        return int(plausible[scores.argmax()]), True


@dataclass(frozen=True)
class ContrastedText:
    """n_contrasted: tokens at which the model was unsure. is_whole: it ended by itself."""

    text: str
    token_ids: tuple[int, ...]
    n_contrasted: int
    is_whole: bool


def contrasted(
    engine: Engine,
    prompts: tuple[Sequence[int], Sequence[int]],
    contrast: Contrast,
    max_new_tokens: int,
    stop: Sequence[str] = (),
) -> ContrastedText:
    """Returns the text behind a prompt; no other request may be in progress.

    prompts: token ids of the prompt, and of the lame one.

    Raises:
        SessionError: A prompt and the text do not fit the context.
    """
    n_needed = max(map(len, prompts)) + max_new_tokens
    if n_needed > engine.context:
        raise SessionError(
            f"prompt and text need {n_needed} positions, the context has {engine.context}: ask for "
            "fewer new tokens"
        )
    sequences = engine.new_sequence(), engine.new_sequence()
    text = maker_of_texts(engine.tokenizer, (), stop)()
    tokens: list[int] = []
    n_contrasted, is_whole = 0, False
    try:
        for sequence, prompt in zip(sequences, prompts, strict=True):
            run_passes(caught_up(sequence, prompt[:-1]))
        latest = [prompt[-1] for prompt in prompts]
        while len(tokens) < max_new_tokens and not is_whole:
            rows = _next_rows(sequences, latest)
            token, is_contrasted = contrast.choose(rows[0].logits[0], rows[1].logits[0])
            n_contrasted += is_contrasted
            tokens.append(token)
            latest = [token, token]
            if token in engine.stop_token_ids:
                is_whole = True
            else:
                text.push(token)
                is_whole = text.is_stopped
        text.flush()
    finally:
        for sequence in sequences:
            sequence.close()
    return ContrastedText(text.text, tuple(tokens), n_contrasted, is_whole)


def _next_rows(sequences: Sequence[TokenSequence], latest: Sequence[int]) -> list[Rows]:
    """Returns the rows behind the latest tokens, of one pass if the model computes several."""
    passes = [
        Pass(sequence, TokenTree((token,), (-1,)), (0,))
        for sequence, token in zip(sequences, latest, strict=True)
    ]
    is_merged = sequences[0].model.capabilities.n_sequences >= len(passes)
    rows = compute(passes) if is_merged else [compute([one])[0] for one in passes]
    for sequence in sequences:
        sequence.commit((0,))
    return rows


def _log_softmax(row: npt.NDArray[Any]) -> Float64:
    values = row.astype(np.float64)
    values -= values.max()
    return np.asarray(values - np.log(np.exp(values).sum()))
