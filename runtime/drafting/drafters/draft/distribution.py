"""From a row of a draft model's logits to the tokens worth proposing after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import N_TOP
from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.sampling import Survivors, top_k, truncate
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.text.token_map import TokenMap

Float64 = npt.NDArray[np.float64]

_HEAD = 2048  # likeliest tokens that may win by their noise; the others hold next to nothing


@dataclass(frozen=True, slots=True)
class Option:
    """A token that may follow.

    draft_id: the same in the draft model's vocabulary. probability: the draft model's own.
    """

    token: int
    draft_id: int
    probability: float


@dataclass(frozen=True)
class DraftDistribution:
    """The draft distribution after a node.

    Shapes:
        tokens, draft_ids: [N] int64, of the target and of the draft model.
        probs: [N] float64, summing to 1.
    """

    tokens: npt.NDArray[np.int64]
    draft_ids: npt.NDArray[np.int64]
    probs: Float64


def likeliest(rows: Rows, index: int, tokens: TokenMap) -> list[Option]:
    """Returns the tokens of the largest logits, the largest first."""
    stats = rows.stats
    probabilities = np.exp(stats.top_logits[index] - stats.log_sum_exp[index])
    return [
        Option(token, int(tokens.draft_ids[i]), float(probability))
        for i, probability in zip(stats.top_ids[index].tolist(), probabilities, strict=True)
        if i >= 0 and (token := int(tokens.names[i])) >= 0
    ]


def coupled(
    row: npt.NDArray[np.float32],
    tokens: TokenMap,
    sampling: SamplingConfig,
    noise: Noise,
    position: int,
) -> list[Option]:
    """Returns the tokens that the noise of ``position`` favours, the one it would draw first.

    The target model draws with the same noise, so alike distributions draw the same token. The
    probabilities are those of the scores with their noise: a lead of the first over the others.

    Source: Gumbel coupling (Daliri, Musco and Suresh, 2024, algorithm 2).

    Shapes: row [N] float32, logits of the draft model.
    """
    distribution = _named(_survivors(row, sampling), tokens)
    if distribution is None:
        return []
    scores = np.log(distribution.probs) + noise.gumbel(position, distribution.tokens)
    best = np.argsort(-scores, kind="stable")[:N_TOP]
    weights = np.exp(scores - scores[best[0]])
    weights /= weights.sum()
    return [
        Option(int(distribution.tokens[i]), int(distribution.draft_ids[i]), float(weights[i]))
        for i in best
    ]


def _survivors(row: npt.NDArray[np.float32], sampling: SamplingConfig) -> Survivors:
    if sampling.is_truncating or len(row) <= _HEAD:
        return truncate(row, sampling)
    ids = top_k(row, _HEAD)
    return Survivors(ids, row[ids].astype(np.float64) / sampling.temperature)


def _named(survivors: Survivors, tokens: TokenMap) -> DraftDistribution | None:
    """Returns the distribution of the survivors that the target has a token for."""
    names = tokens.names[survivors.ids]
    is_named = names >= 0
    probs = np.where(is_named, survivors.probs(), 0.0)
    kept = probs > 0
    if not kept.any():
        return None
    draft_ids = tokens.draft_ids[survivors.ids]
    return DraftDistribution(names[kept], draft_ids[kept], probs[kept] / probs.sum())
