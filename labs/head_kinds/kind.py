"""What the kinds of heads here have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import OF_MODEL
from edgedec.training.heads.torch_head import TorchWeights

Float32 = npt.NDArray[np.float32]

_SPREAD = 0.02
"""Standard deviation of weights that begin at random."""

STATE_SHARE = 10.0
"""What the distance from states counts, where that of logits counts 1, as published (1 and 0.1)."""


class Kind(TorchWeights):
    """A head. `forward` gives logits of every step as `TorchHead` does, from the same inputs.

    auxiliary: what the latest `forward` adds to the loss.
    """

    def __init__(
        self,
        config: ModelConfig,
        of_model: Mapping[str, Float32],
        learned: Mapping[str, Float32],
        context: int,
    ) -> None:
        """of_model: the model's weights, its last layer as ``layers.0``. learned: those trained."""
        super().__init__(
            config, {name: of_model[name] for name in OF_MODEL} | dict(learned), context
        )
        self._model_norm = torch.from_numpy(of_model["norm.weight"])
        self.auxiliary = torch.zeros(())

    def n_reads(self, name: str, n_steps: int) -> int:
        """Returns how often the weight ``name`` is read while ``n_steps`` tokens are drafted."""
        return n_steps

    def states(self, hidden: Tensor) -> Tensor:
        """Returns what the model's LM head reads [B, T, D], from hidden states [B, T, L * D]."""
        return hidden[..., -self.config.hidden_size :] * self._model_norm

    def distance(self, loss: Callable[..., Tensor], rows: Tensor, states: Tensor) -> Tensor:
        """Returns the mean ``loss`` of ``rows`` that stand for ``states``, but for padded ones."""
        is_real = (states != 0).any(-1)
        return loss(rows[is_real].float(), states[is_real])

    def logits(self, x: Tensor) -> Tensor:
        """Returns the logits of rows that stand for states."""
        return functional.linear(x, self.weight("lm_head.weight"))


def layer_of(of_model: Mapping[str, Float32]) -> dict[str, Float32]:
    """Returns the weights of the model's last layer, to begin with."""
    return {name: values for name, values in of_model.items() if name.startswith("layers.0.")}


def spread(rng: np.random.Generator, *shape: int) -> Float32:
    """Returns small random numbers."""
    return (_SPREAD * rng.standard_normal(shape)).astype(np.float32)


def passing(rng: np.random.Generator, size: int, n_before: int = 0, n_behind: int = 0) -> Float32:
    """Returns a matrix that passes ``size`` numbers on, among others that it mostly leaves out."""
    made = spread(rng, size, n_before + size + n_behind)
    made[:, n_before : n_before + size] += np.eye(size, dtype=np.float32)
    return made
