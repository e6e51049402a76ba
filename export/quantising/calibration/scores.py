"""How well a quantised model predicts a text, beside the float model."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.export.verifying.verify import log_softmax

_CHUNK = 32
"""Rows whose float64 probabilities are held at once."""


@dataclass(frozen=True)
class Scores:
    """Means over the tokens of a held-out text.

    kl_nats: KL(float || quantised). top1_agreement: tokens with the same first choice, in [0, 1].
    perplexity, float_perplexity: of the text itself, under either model.
    """

    n_tokens: int
    kl_nats: float
    top1_agreement: float
    perplexity: float
    float_perplexity: float


def score(
    logits: npt.NDArray[np.float32],
    expected: npt.NDArray[np.float32],
    ids: npt.NDArray[np.int64],
) -> Scores:
    """Returns how ``logits`` compare with those ``expected``, on the text ``ids``.

    Shapes: logits, expected [T, V]; ids [T].
    """
    kl, same, ours, theirs = [], [], [], []
    for start in range(0, len(ids) - 1, _CHUNK):
        rows = slice(start, min(start + _CHUNK, len(ids) - 1))
        log_q, log_p = log_softmax(logits[rows]), log_softmax(expected[rows])
        following = ids[rows.start + 1 : rows.stop + 1]
        kl.append(np.sum(np.exp(log_p) * (log_p - log_q), axis=-1))
        same.append(log_p.argmax(-1) == log_q.argmax(-1))
        ours.append(log_q[np.arange(len(following)), following])
        theirs.append(log_p[np.arange(len(following)), following])
    return Scores(
        n_tokens=len(ids) - 1,
        kl_nats=float(np.concatenate(kl).mean()),
        top1_agreement=float(np.concatenate(same).mean()),
        perplexity=math.exp(-float(np.concatenate(ours).mean())),
        float_perplexity=math.exp(-float(np.concatenate(theirs).mean())),
    )
