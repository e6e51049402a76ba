"""How likely a token was, and which were likeliest: of the model's logits before any edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.graph import N_TOP
from edgedec.runtime.sequences.rows import Rows


@dataclass(frozen=True)
class TokenLogprob:
    """One token of an output.

    logprob: of the token, at temperature 1, over the whole vocabulary. Units: nats.
    top: the likeliest tokens and theirs, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class TextLogprob:
    """A token of an answer's text, and how likely it was.

    text: what it adds. spelling: the bytes of that; those of all tokens, one behind the other,
    are the text's. n_characters: that it completes. logprob, top: as `TokenLogprob` has them.
    """

    token: int
    text: str
    spelling: bytes
    logprob: float
    top: tuple[tuple[int, float], ...]
    n_characters: int = 0


def text_logprobs(
    tokens: Sequence[TokenLogprob], text: str, token_bytes: Callable[[int], bytes]
) -> list[TextLogprob]:
    """Returns ``tokens``, which complete ``text`` together, as tokens of the text."""
    spelt = [(logprob, spelling) for logprob in tokens if (spelling := token_bytes(logprob.token))]
    whole = text.encode()
    before = b"".join(spelling for _, spelling in spelt[:-1])
    if spelt and whole.startswith(before):  # the last may be cut by a stop text, or by a mark
        spelt[-1] = spelt[-1][0], whole[len(before) :]
    groups = []
    for i, (logprob, spelling) in enumerate(spelt, 1):
        shown = text if len(spelt) == 1 else spelling.decode("utf-8", "replace")
        n = len(text) if i == len(spelt) else 0
        groups.append(TextLogprob(logprob.token, shown, spelling, logprob.logprob, logprob.top, n))
    return groups


def token_logprob(rows: Rows, index: int, token: int, n_top: int) -> TokenLogprob:
    """Returns how likely ``token`` was after a row. Above `N_TOP`, rows need logits."""
    stats = rows.stats
    total = float(stats.log_sum_exp[index])
    ids, logits = stats.top_ids[index], stats.top_logits[index]
    if n_top > N_TOP:
        ids, logits = _likeliest(rows.logits[index], n_top)
    top = {int(i): float(x) - total for i, x in zip(ids, logits, strict=True) if i >= 0}
    log_prob = top.get(token)
    if log_prob is None:
        log_prob = float(rows.logits[index][token]) - total
    return TokenLogprob(token, log_prob, tuple(top.items())[:n_top])


def _likeliest(row: npt.NDArray[Any], n: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the ``n`` likeliest tokens, likeliest first, of equals the lowest id first."""
    n = min(n, len(row))
    least = np.partition(row, -n)[-n]
    ids = np.flatnonzero(row >= least)
    ids = ids[np.argsort(-row[ids].astype(np.float64), kind="stable")][:n]
    return ids, row[ids]
