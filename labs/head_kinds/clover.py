"""Clover: a light head that carries a state from token to token.

The state before a token takes that token in: per head, the token's value times the cosine of the
state's query and the token's key. A decoder layer over all rows augments the first state. Further
tokens go into the state alone.

Source: Clover (arXiv 2405.00263), and Clover-2 (arXiv 2408.00264), which takes the first token in
before the layer; XiaoBin1992/clover ``clover2.py`` (Apache-2.0) for what it computes.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from edgedec.labs.head_kinds.kind import Float32, Kind, layer_of, passing, spread
from edgedec.models.blocks import attention_half, mlp_half
from edgedec.models.config import ModelConfig
from edgedec.training.heads.torch_head import TorchHeadOps
from edgedec.training.torch_ops import split_heads

_FIRST, _LATER = "first", "later"


def initial(of_model: Mapping[str, Float32], rng: np.random.Generator) -> dict[str, Float32]:
    """Returns what training begins with."""
    norm = of_model["norm.weight"]
    size = len(norm)
    zeros, learned = np.zeros(size, np.float32), layer_of(of_model, rng)
    for name in (_FIRST, _LATER):
        learned |= {f"{name}.norm.weight": np.ones(size, np.float32)}
        learned |= {f"{name}.{part}.weight": passing(rng, size) for part in "qk"}
        learned |= {f"{name}.v.weight": spread(rng, size, size)}
        learned |= {f"{name}.{part}.bias": zeros for part in "qkv"}
    learned |= {"out.weight": passing(rng, size), "out.bias": zeros}
    learned |= {"later_out.weight": passing(rng, size, n_behind=size), "later_out.bias": zeros}
    return learned | {"norm.weight": norm, "head_norm.weight": norm}


class Clover(Kind):
    """The head of Clover-2, with one augmenting layer."""

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits of each step, but for the first token, which has no state before it.

        If zeros stood for that state, norms and cosines would have gradients of 1e19 there, and
        nothing would be learned.
        """
        ops = TorchHeadOps(self, tokens[:, 1:], hidden[:, 1:], [])
        token, before = ops.embed("embed_tokens.weight"), self.states(hidden)[:, :-1]
        x = self._remembered(ops, before, token, _FIRST)
        x = mlp_half(ops, self.config, 0, attention_half(ops, self.config, 0, x))
        x = ops.rms_norm(x, "norm.weight")
        rows = [ops.linear(x, "out.weight", "out.bias")]
        for _ in range(1, n_steps):
            token = token[:, 1:]
            x = self._remembered(ops, x[:, :-1], token, _LATER)
            both = torch.cat([x, token], -1)
            rows.append(ops.linear(both, "later_out.weight", "later_out.bias"))
        return [self.logits(ops.rms_norm(row, "head_norm.weight")) for row in rows]

    def n_reads(self, name: str, n_steps: int) -> int:
        """Returns how often the weight ``name`` is read while ``n_steps`` tokens are drafted."""
        if name in ("lm_head.weight", "head_norm.weight"):
            return n_steps
        return n_steps - 1 if name.startswith(_LATER) else 1

    def _remembered(self, ops: TorchHeadOps, x: Tensor, token: Tensor, name: str) -> Tensor:
        def heads(y: Tensor, part: str) -> Tensor:
            projected = ops.linear(y, f"{name}.{part}.weight", f"{name}.{part}.bias")
            return split_heads(projected, self.config.head_size)

        q, k = heads(ops.rms_norm(x, f"{name}.norm.weight"), "q"), heads(token, "k")
        share = functional.cosine_similarity(q, k, -1, self.config.rms_norm_eps)
        return x + (heads(token, "v") * share.unsqueeze(-1)).flatten(-2)


def make(
    config: ModelConfig, of_model: Mapping[str, Float32], context: int, rng: np.random.Generator
) -> Clover:
    """Returns a head that is not trained yet."""
    return Clover(config, of_model, initial(of_model, rng), context)
