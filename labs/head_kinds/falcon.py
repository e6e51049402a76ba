"""Falcon: a head that drafts a block of tokens in one pass.

An LSTM of two layers reads states with the tokens behind them. Then comes a decoder layer whose
rows see those of their own block, whatever their order. Row t makes the state of the token as many
places behind t as a block has rows. So the last rows together draft a block.

Source: Falcon (arXiv 2412.12639); Bestpay-inc/Falcon ``cnets.py`` (Apache-2.0) for what it
computes. Its glancing, by which training shows some right answers among the inputs, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.labs.head_kinds.kind import STATE_SHARE, Float32, Kind, layer_of
from edgedec.models.blocks import add_attention, mlp_half
from edgedec.models.config import ModelConfig
from edgedec.training.heads.torch_head import TorchHeadOps
from edgedec.training.torch_ops import split_heads

_LAYERS = 2
_DROPOUT = 0.1


def initial(of_model: Mapping[str, Float32], rng: np.random.Generator) -> dict[str, Float32]:
    """Returns what training begins with: of the LSTM what torch would begin with."""
    learned, size = layer_of(of_model, rng), len(of_model["norm.weight"])
    del learned["layers.0.input_layernorm.weight"]  # the layer has no norm before its attention
    for i in range(_LAYERS):
        shapes = {"ih": (4 * size, (1 if i else 2) * size), "hh": (4 * size, size)}
        for part, shape in shapes.items():
            for name, of in (("weight", shape), ("bias", shape[:1])):
                values = rng.uniform(-(size**-0.5), size**-0.5, of)
                learned[f"lstm.{i}.{part}.{name}"] = values.astype(np.float32)
    return learned


class Falcon(Kind):
    """The head, with blocks of as many tokens as `forward` is asked for."""

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits of each step; of step s a row sees ``n_steps - 1 - s`` rows behind it.

        So step s is the s-th token of a block, wherever that begins.
        """
        states = self.states(hidden)
        before = functional.pad(states, (0, 0, 1, 0))[:, :-1]
        ops = _BlockOps(self, tokens, hidden, [])
        x = self._lstm(torch.cat([ops.embed("embed_tokens.weight"), before], -1))
        logits, losses, far = [], [], n_steps - 1
        for step in range(n_steps):
            ops.n_ahead = far - step
            out = mlp_half(ops, self.config, 0, add_attention(ops, self.config, 0, x, x))
            out = out[:, : x.shape[1] - far]
            logits.append(self.logits(out))
            losses.append(self.distance(functional.smooth_l1_loss, out, states[:, far:]))
        self.auxiliary = STATE_SHARE * torch.stack(losses).mean()
        return logits

    def n_reads(self, name: str, n_steps: int) -> int:
        """Returns how often the weight ``name`` is read while ``n_steps`` tokens are drafted."""
        return 1

    def _lstm(self, x: Tensor) -> Tensor:
        flat = [
            self.weight(f"lstm.{i}.{part}.{name}")
            for i in range(_LAYERS)
            for name in ("weight", "bias")
            for part in ("ih", "hh")
        ]
        zeros = x.new_zeros(_LAYERS, len(x), self.config.hidden_size)
        with torch.autocast(x.device.type, enabled=False):  # which has no such operator
            dropout = _DROPOUT if self.training else 0.0
            is_training = self.training
            outputs, *_ = torch.lstm(
                x.float(), (zeros, zeros), flat, True, _LAYERS, dropout, is_training, False, True
            )
        return outputs


class _BlockOps(TorchHeadOps):
    """Each row sees those before it, and ``n_ahead`` behind it."""

    n_ahead = 0

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads."""
        n, groups = q.shape[1], self.config.n_heads // self.config.n_kv_heads
        sees = torch.ones(n, n, dtype=torch.bool, device=q.device).tril(self.n_ahead)
        keys = self._rotated(k, layer).repeat_interleave(groups, 1)
        values = split_heads(v, self.config.head_size).transpose(1, 2).repeat_interleave(groups, 1)
        queries, scale = self._rotated(q, layer), self.config.product_scale
        out = functional.scaled_dot_product_attention(
            queries.to(values.dtype), keys.to(values.dtype), values, sees, scale=scale
        )
        return out.transpose(1, 2).flatten(-2)


def make(
    config: ModelConfig, of_model: Mapping[str, Float32], context: int, rng: np.random.Generator
) -> Falcon:
    """Returns a head that is not trained yet."""
    return Falcon(config, of_model, initial(of_model, rng), context)
