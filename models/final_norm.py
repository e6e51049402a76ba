"""The norm in front of the LM head, whose weights are a file of a bundle.

Graphs compute that norm only for rows whose logits are wanted, so what reads hidden states of other
rows, such as `Engine.embed`, applies it itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError
from edgedec.models.hidden_states import Float32, normed

_STORED = np.dtype("<f4")


@dataclass(frozen=True, eq=False)
class FinalNorm:
    """The norm in front of the LM head. weights: [hidden_size]."""

    weights: Float32
    epsilon: float

    def of(self, hidden: Float32) -> Float32:
        """Returns rows of the residual stream [T, hidden_size] as the LM head reads them."""
        return normed(hidden, self.epsilon) * self.weights


def write_final_norm(path: Path, weights: Float32) -> None:
    """Writes ``weights`` [hidden_size] as little-endian float32."""
    path.write_bytes(weights.astype(_STORED).tobytes())


def read_final_norm(path: Path, config: ModelConfig) -> FinalNorm:
    """Returns the norm of a model with ``config``.

    Raises:
        BundleError: The file cannot be read, has another size, or a number in it is not finite.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}; copy the bundle again") from None
    expected = config.hidden_size * _STORED.itemsize
    if len(content) != expected:
        raise BundleError(
            f"{path} is {len(content)} bytes, expected {expected}: export the model again"
        )
    weights = np.frombuffer(content, _STORED).astype(np.float32)
    if not np.isfinite(weights).all():
        raise BundleError(f"{path} has a weight that is not finite: export the model again")
    return FinalNorm(weights, config.rms_norm_eps)
