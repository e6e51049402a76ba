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

_ADDED = ("o_proj.weight", "down_proj.weight")
"""Matrices of a layer whose products are added to its rows."""

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


def layer_of(of_model: Mapping[str, Float32], rng: np.random.Generator) -> dict[str, Float32]:
    """Returns weights of a layer like the model's last one. At first it adds nothing to its rows.

    The model's own weights would be no good beginning: they are for rows of another size.
    """

    def begun(name: str, values: Float32) -> Float32:
        if values.ndim == 1:
            return np.ones_like(values)
        return np.zeros_like(values) if name.endswith(_ADDED) else spread(rng, *values.shape)

    of_layer = {name: w for name, w in of_model.items() if name.startswith("layers.0.")}
    return {name: begun(name, values) for name, values in of_layer.items()}


def spread(rng: np.random.Generator, *shape: int) -> Float32:
    """Returns small random numbers."""
    return (_SPREAD * rng.standard_normal(shape)).astype(np.float32)


def passing(rng: np.random.Generator, size: int, n_before: int = 0, n_behind: int = 0) -> Float32:
    """Returns a matrix that passes ``size`` numbers on, among others that it mostly leaves out."""
    made = spread(rng, size, n_before + size + n_behind)
    made[:, n_before : n_before + size] += np.eye(size, dtype=np.float32)
    return made
