"""What a token adds to the logits of the next: a matrix of low rank, as a file of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import BundleError

Float32 = npt.NDArray[np.float32]

_STORED = np.dtype("<f2")
N_CHANGED = 256
"""Tokens of a row, the likeliest, whose logits are changed: a whole row costs as much as a pass."""


@dataclass(frozen=True)
class TokenPairs:
    """Both factors, and the matrix that makes of a head's row what weighs their products, if any.

    n_candidates: tokens of a row, the likeliest, that are left; 0 for all.

    Shapes: before and after [vocabulary, rank], gate [rank, hidden size].
    """

    before: npt.NDArray[np.floating]
    after: npt.NDArray[np.floating]
    gate: npt.NDArray[np.floating] | None = None
    n_candidates: int = 0

    def weights(self, rows: Float32) -> Float32:
        """Returns what weighs the products [T, rank] behind ``rows`` [T, hidden size] of a head."""
        assert self.gate is not None
        weights: Float32 = rows @ self.gate.T.astype(np.float32)
        return weights

    def added(
        self, logits: Float32, before: Sequence[int], weights: Float32 | None = None
    ) -> tuple[Float32, npt.NDArray[np.int64]]:
        """Returns ``logits`` [T, V] of rows behind the tokens ``before``, with what these add.

        The other part are the tokens whose logits changed, rising [T, N].
        """
        n_all = logits.shape[1]
        n = min(self.n_candidates or N_CHANGED, n_all)
        ids = np.sort(np.argpartition(logits, n_all - n, axis=1)[:, n_all - n :], axis=1)
        changed = np.full_like(logits, -np.inf) if self.n_candidates else logits.copy()
        for i, token in enumerate(before):
            first = self.before[token].astype(np.float32)
            if weights is not None:
                first = first * weights[i]
            changed[i, ids[i]] = logits[i, ids[i]] + self.after[ids[i]].astype(np.float32) @ first
        return changed, ids


def write_token_pairs(path: Path, pairs: TokenPairs) -> None:
    """Writes all matrices as little-endian float16, one behind the other."""
    parts = (pairs.before, pairs.after, *(() if pairs.gate is None else (pairs.gate,)))
    path.write_bytes(b"".join(part.astype(_STORED).tobytes() for part in parts))


def read_token_pairs(path: Path, vocab_size: int, gate_size: int, n_candidates: int) -> TokenPairs:
    """Returns them, mapped. gate_size: numbers of a row that the gate reads, 0 without one.

    Raises:
        BundleError: The file cannot be read or has another size.
    """
    try:
        values = np.memmap(path, _STORED, "r")
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path}: {error}; copy the bundle again") from None
    rank, rest = divmod(len(values), 2 * vocab_size + gate_size)
    if rest:
        raise BundleError(
            f"{path} has {len(values)} numbers, expected a multiple of "
            f"{2 * vocab_size + gate_size}: export the model again"
        )
    before, after = values[: 2 * vocab_size * rank].reshape(2, vocab_size, rank)
    gate = values[2 * vocab_size * rank :].reshape(rank, gate_size) if gate_size else None
    return TokenPairs(before, after, gate, n_candidates)
