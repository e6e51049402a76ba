"""FSPAD: a head of EAGLE's kind whose two outputs learn different things.

*Feature sampling*: the state and the token behind it go through a matrix and an MLP whose gate the
token alone opens. *Partial alignment*: half of the layer's output makes the logits; the other half
learns the model's next state, and is what the next step reads.

Source: FSPAD (arXiv 2408.15562); Luc4Gui/FSPAD ``cnets_fspad.py`` (Apache-2.0) for what it
computes, ``main_fspad.py`` for the loss. Its own training has one step only.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.labs.head_kinds.kind import STATE_SHARE, Float32, Kind, layer_of, passing, spread
from edgedec.models.blocks import add_attention, mlp
from edgedec.models.config import ModelConfig
from edgedec.training.heads.torch_head import TorchHeadOps

_NORM = "layers.0.input_layernorm.weight"
_DOWN = "layers.0.mlp.down_proj.weight"


def initial(of_model: Mapping[str, Float32], rng: np.random.Generator) -> dict[str, Float32]:
    """Returns what training begins with."""
    learned, size = layer_of(of_model, rng), len(of_model["norm.weight"])
    del learned[_NORM]  # the layer has no norm before its attention
    inner = learned[_DOWN].shape[1]
    learned[_DOWN] = np.concatenate([learned[_DOWN]] * 2)
    return learned | {
        "fc.weight": passing(rng, size, n_before=size),
        "fc.bias": np.zeros(size, np.float32),
        "fc_norm.weight": np.ones(size, np.float32),
        "fc_gate.weight": spread(rng, inner, size),
        "fc_up.weight": spread(rng, inner, size),
        "fc_down.weight": np.zeros((size, inner), np.float32),
    }


class Fspad(Kind):
    """The head, practised some steps deep as `TorchHead` is."""

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits of each step."""
        states = self.states(hidden)
        features, past, logits, losses = _behind(states), list[tuple[Tensor, Tensor]](), [], []
        for step in range(n_steps):
            ops = TorchHeadOps(self, tokens, features, past)
            predicted, regressed = self._step(ops, features).chunk(2, -1)
            logits.append(self.logits(predicted[:, step:]))
            rows = regressed[:, step:]
            losses.append(self.distance(functional.smooth_l1_loss, rows, states[:, step:]))
            features = _behind(regressed)
        self.auxiliary = STATE_SHARE * torch.stack(losses).mean()
        return logits

    def _step(self, ops: TorchHeadOps, features: Tensor) -> Tensor:
        token = ops.embed("embed_tokens.weight")
        x = ops.linear(torch.cat([token, features], -1), "fc.weight", "fc.bias")
        up = ops.linear(ops.rms_norm(x, "fc_norm.weight"), "fc_up.weight")
        x = x + ops.linear(ops.gate(ops.linear(token, "fc_gate.weight"), up), "fc_down.weight")
        x = add_attention(ops, self.config, 0, x, x)
        h = ops.rms_norm(x, "layers.0.post_attention_layernorm.weight")
        return torch.cat([x, x], -1) + mlp(ops, self.config, 0, h)


def _behind(x: Tensor) -> Tensor:
    """Returns, in each row, the row of ``x`` before."""
    return functional.pad(x, (0, 0, 1, 0))[:, :-1]


def make(
    config: ModelConfig, of_model: Mapping[str, Float32], context: int, rng: np.random.Generator
) -> Fspad:
    """Returns a head that is not trained yet."""
    return Fspad(config, of_model, initial(of_model, rng), context)
