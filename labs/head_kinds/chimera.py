"""Chimera: a new token's row is made of three embeddings, and reads the states of the text.

*Trigram encoder*: an MLP over the last three tokens. *Full-context encoder*: a decoder layer, in
which the trigram's row sees the states of all tokens before it as rows; drafted tokens stand there
with what the layer made of them. A head for each depth reads the last state beside the layer's
output.

Source: Chimera (arXiv 2402.15758); kafkayu/Chimera ``Chimera_model.py`` for what it computes. There
a head is a matrix over the vocabulary. Here it is a square one before the model's LM head, which
begins as the same and is smaller.
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
from edgedec.training.torch_ops import rotated, split_heads

_N_GRAM = 3


def initial(
    of_model: Mapping[str, Float32], rng: np.random.Generator, n_steps: int
) -> dict[str, Float32]:
    """Returns what training begins with."""
    size = len(of_model["norm.weight"])
    wide = _N_GRAM * size
    heads = {
        f"heads.{i}.weight": passing(rng, size, n_behind=size) + passing(rng, size, n_before=size)
        for i in range(n_steps)
    }
    return (
        layer_of(of_model, rng)
        | heads
        | {
            "block.weight": np.zeros((wide, wide), np.float32),
            "block.bias": np.zeros(wide, np.float32),
            "gram.weight": spread(rng, size, wide),
        }
    )


class Chimera(Kind):
    """The head, practised some steps deep as `TorchHead` is."""

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits of each step."""
        states = self.states(hidden)
        past, logits, losses = [self._kept(states, tokens)], [], []
        for step in range(n_steps):
            ops = TorchHeadOps(self, tokens, hidden, past)
            x = attention_half(ops, self.config, 0, self._trigrams(ops))
            x = mlp_half(ops, self.config, 0, x)
            past[-1] = self._kept(x, tokens)  # from now on the row stands for its state
            seen = functional.pad(states, (0, 0, step + 1, 0))[:, : x.shape[1]]
            row = ops.linear(torch.cat([seen, x], -1), f"heads.{step}.weight")
            logits.append(self.logits(row[:, step:]))
            losses.append(self.distance(functional.mse_loss, x[:, step:], states[:, step:]))
        self.auxiliary = torch.stack(losses).mean()
        return logits

    def n_reads(self, name: str, n_steps: int) -> int:
        """Returns how often the weight ``name`` is read while ``n_steps`` tokens are drafted."""
        return 1 if name.startswith("heads.") else n_steps

    def _trigrams(self, ops: TorchHeadOps) -> Tensor:
        token = ops.embed("embed_tokens.weight")
        rows = [functional.pad(token, (0, 0, i, 0))[:, : token.shape[1]] for i in (2, 1, 0)]
        x = torch.cat(rows, -1)
        x = x + functional.silu(ops.linear(x, "block.weight", "block.bias"))
        return ops.linear(x, "gram.weight")

    def _kept(self, rows: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Returns keys and values of ``rows``."""
        ops, size = TorchHeadOps(self, tokens, rows, []), self.config.head_size
        h = ops.rms_norm(rows, "layers.0.input_layernorm.weight")
        k, v = (
            split_heads(ops.linear(h, f"layers.0.self_attn.{part}_proj.weight"), size)
            for part in "kv"
        )
        cos, sin = (table[: rows.shape[1]] for table in self.rope(0))
        return rotated(k.transpose(1, 2), cos, sin), v.transpose(1, 2)


def make(
    config: ModelConfig,
    of_model: Mapping[str, Float32],
    context: int,
    rng: np.random.Generator,
    n_steps: int,
) -> Chimera:
    """Returns a head that is not trained yet. n_steps: most tokens that it drafts."""
    return Chimera(config, of_model, initial(of_model, rng, n_steps), context)
