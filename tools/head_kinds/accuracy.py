"""How often heads are right, and what their matrices are in few bits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from texts import Answers

from edgedec.export.quantising.quantise import quantize_rows
from edgedec.models.quant import QuantFormat, ScaleKind
from edgedec.training.features.feature_file import TextFeatures
from edgedec.training.heads.torch_head import TorchWeights

Bools = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


@torch.no_grad()
def right(
    head: TorchWeights, answers: Answers, token_ids: Ids, head_ids: Ids, n_steps: int
) -> Bools:
    """Returns which guesses are right [rounds, steps], all tokens before each being true.

    token_ids: rising, those of the embedding's rows. head_ids: rising, those of the logits.
    """
    head.eval()
    return np.concatenate(
        [
            _right_of(head, text, start, token_ids, head_ids, n_steps)
            for text, start in zip(answers.texts, answers.starts, strict=True)
        ]
    )


def _right_of(
    head: TorchWeights,
    text: TextFeatures,
    start: int,
    token_ids: Ids,
    head_ids: Ids,
    n_steps: int,
) -> Bools:
    tokens = torch.from_numpy(np.searchsorted(token_ids, text.tokens))[None]
    hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
    said = [head_ids[logits[0].argmax(-1).numpy()] for logits in head(tokens, hidden, n_steps)]
    n = len(text.tokens)
    padded = [np.pad(s, (n - len(s), 0), constant_values=-1) for s in said]
    hits = np.stack([s == text.top_ids[:, 0] for s in padded])
    # The state of token t is known: step s guesses what comes after token t + 1 + s.
    last = max(start, n - n_steps)
    return np.stack([hits[step, start + step : last + step] for step in range(n_steps)], axis=1)


def tokens_per_pass(hits: Bools) -> list[float]:
    """Returns the mean tokens that a pass over 1, 2.. drafted ones keeps, its own included."""
    kept: list[float] = (1 + hits.cumprod(axis=1).mean(axis=0).cumsum()).tolist()
    return kept


def rounded(matrix: Float32, bits: int) -> Float32:
    """Returns ``matrix`` [N, K] in whole codes of ``bits``, a scale of 16 bits for each 32.

    Of 4, 5 and 8 bits these are the formats q4_0, q5_0 and q8_0; for others there are no kernels.
    """
    fmt = QuantFormat(f"q{bits}", -1, bits, ScaleKind.SINGLE, 1 << bits - 1)
    return quantize_rows(matrix, fmt).dequantize()


def stored_bytes(n_weights: int, bits: int = 4) -> float:
    """Returns the bytes of weights that `rounded` made."""
    return n_weights * (bits + 0.5) / 8


def in_percent(shares: Sequence[float]) -> str:
    """Returns shares as a table shows them."""
    return ", ".join(f"{share:.1%}" for share in shares)
