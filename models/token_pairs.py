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
    """Both factors. Shapes: each [vocabulary, rank]."""

    before: npt.NDArray[np.floating]
    after: npt.NDArray[np.floating]

    def added(
        self, logits: Float32, before: Sequence[int]
    ) -> tuple[Float32, npt.NDArray[np.int64]]:
        """Returns ``logits`` [T, V] of rows behind the tokens ``before``, with what these add.

        The other part are the tokens whose logits changed, rising [T, N].
        """
        n = min(N_CHANGED, logits.shape[1])
        ids = np.argpartition(logits, logits.shape[1] - n, axis=1)[:, logits.shape[1] - n :]
        changed, ids = logits.copy(), np.sort(ids, axis=1)
        for row, of_row, token in zip(changed, ids, before, strict=True):
            row[of_row] += self.after[of_row].astype(np.float32) @ self.before[token].astype(
                np.float32
            )
        return changed, ids


def write_token_pairs(path: Path, pairs: TokenPairs) -> None:
    """Writes both factors as little-endian float16, one behind the other."""
    path.write_bytes(pairs.before.astype(_STORED).tobytes() + pairs.after.astype(_STORED).tobytes())


def read_token_pairs(path: Path, vocab_size: int) -> TokenPairs:
    """Returns both factors, mapped.

    Raises:
        BundleError: The file cannot be read or has another size.
    """
    try:
        values = np.memmap(path, _STORED, "r")
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path}: {error}; copy the bundle again") from None
    if len(values) % (2 * vocab_size):
        raise BundleError(
            f"{path} has {len(values)} numbers, expected a multiple of {2 * vocab_size}: export "
            "the model again"
        )
    before, after = values.reshape(2, vocab_size, -1)
    return TokenPairs(before, after)
