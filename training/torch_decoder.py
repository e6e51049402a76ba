"""A draft model in torch: the recipe of its family, over whole texts."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.models.families import find_family
from edgedec.training.heads.torch_head import TorchHeadOps, TorchWeights
from edgedec.training.torch_ops import split_heads


class TorchDecoder(TorchWeights):
    """A draft model. `forward` gives logits, as `TorchHead` does of a single step."""

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits after each token, in a list of one tensor.

        Shapes: tokens [B, T], places in the embedding; hidden is not read; result [B, T, N].
        """
        ops = DecoderOps(self, tokens, hidden, [])
        return [find_family(self.config.family).recipe(ops, self.config)]


class DecoderOps(TorchHeadOps):
    """`Ops` over tensors [B, T, features], for a model of several layers."""

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads; each row sees those of its window, itself included."""
        c, n, window = self.config, q.shape[1], self.config.layer(layer).window
        sees = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        if window:
            sees = sees.triu(1 - window)
        n_groups = c.n_heads // c.n_kv_heads
        queries = self._rotated(q, layer)
        keys = self._rotated(k, layer).repeat_interleave(n_groups, 1)
        values = split_heads(v, c.head_size).transpose(1, 2).repeat_interleave(n_groups, 1)
        if c.attention_softcap:
            scores = self.scores(queries @ keys.transpose(-1, -2)).masked_fill(~sees, -torch.inf)
            attended = scores.float().softmax(-1).to(values.dtype) @ values
        else:
            attended = functional.scaled_dot_product_attention(
                queries, keys, values.to(queries.dtype), sees, scale=c.product_scale
            )
        return attended.transpose(1, 2).flatten(-2)
