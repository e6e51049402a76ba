"""Rows that go through the model itself, behind its text, to stand for tokens that are to come.

*PPD* trains the embeddings of such rows alone. *Hidden transfer* puts a row in between the layers:
a matrix makes it of the last token's hidden state there.

Row j of token u sees the text up to u and the rows of u before it. Its logits are about token
u + 2 + j, so unlike other heads both know nothing of token u + 1.

Source: PPD (arXiv 2405.18628), hmarkc/parallel-prompt-decoding ``model.py``, with one virtual token
for each prompt token; Hidden Transfer (arXiv 2404.12022), which publishes no code. Its layers are a
choice of ours, and its loss on hidden states is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from edgedec.labs.head_kinds.kind import Float32, Kind, passing, spread
from edgedec.models.blocks import attention_half, mlp_half
from edgedec.models.config import ModelConfig
from edgedec.training.heads.torch_head import TorchWeights
from edgedec.training.torch_decoder import DecoderOps
from edgedec.training.torch_ops import rotated, split_heads

_EMBEDDING, _MAP = "prompt", "map"


class Inside(Kind):
    """Rows of either kind. layers: behind which each enters; 0 with an embedding of its own."""

    def __init__(
        self,
        model: ModelConfig,
        of_model: Mapping[str, Float32],
        learned: Mapping[str, Float32],
        context: int,
        layers: Sequence[int],
        dtype: torch.dtype,
    ) -> None:
        """dtype: of the model's matrices."""
        super().__init__(model, of_model, learned, context)
        self._frozen = {
            name: torch.from_numpy(values).to(dtype if values.ndim == 2 else torch.float32)
            for name, values in of_model.items()
        }
        self._layers = tuple(layers)

    def weight(self, name: str) -> Tensor:
        """Returns the weight ``name``, of the model or trained."""
        return self._frozen[name] if name in self._frozen else super().weight(name)

    def n_reads(self, name: str, n_steps: int) -> int:
        """Returns how often the weight ``name`` is read; the LM head is read by the pass anyway."""
        return 0 if name == "lm_head.weight" else 1

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits of each step."""
        with torch.no_grad():
            text = _RowOps(self, tokens, hidden)
            x, entered = text.embed("embed_tokens.weight"), {}
            for i in range(self.config.n_layers):
                entered[i] = x
                x = self._layer(text, i, x)
        logits = []
        for step, first in enumerate(self._layers[:n_steps]):
            text.step = step + 1
            if first:
                x = text.linear(entered[first], f"{_MAP}.{step}.weight")
            else:
                x = self.weight(f"{_EMBEDDING}.{step}.weight").expand(*tokens.shape, -1)
            for i in range(first, self.config.n_layers):
                x = self._layer(text, i, x)
            x = text.rms_norm(x, "norm.weight")
            logits.append(text.linear(x[:, : x.shape[1] - step - 1], "lm_head.weight"))
        return logits

    def _layer(self, ops: _RowOps, i: int, x: Tensor) -> Tensor:
        return mlp_half(ops, self.config, i, attention_half(ops, self.config, i, x))


class _RowOps(DecoderOps):
    """Of step 0 rows are the text; of later ones each is ``step`` behind the text's row."""

    step = 0

    def __init__(self, head: TorchWeights, tokens: Tensor, hidden: Tensor) -> None:
        super().__init__(head, tokens, hidden, [])
        self._rows: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads, after keeping this step's keys and values."""
        c, n = self.config, q.shape[1]
        groups = c.n_heads // c.n_kv_heads
        cos, sin = (table[self.step : self.step + n] for table in self._head.rope(layer))

        def heads(x: Tensor) -> Tensor:
            return split_heads(x, c.head_size).transpose(1, 2)

        query = rotated(heads(q), cos, sin)
        kept = self._rows.setdefault(layer, [])
        kept.append(
            (
                rotated(heads(k), cos, sin).repeat_interleave(groups, 1),
                heads(v).repeat_interleave(groups, 1),
            )
        )
        sees = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        scores = [self.scores(query @ kept[0][0].mT).masked_fill(~sees, -torch.inf)]
        scores += [self.scores((query * key).sum(-1, keepdim=True)) for key, _ in kept[1:]]
        shares = torch.cat(scores, -1).float().softmax(-1).to(query.dtype)
        attended = shares[..., :n] @ kept[0][1].to(query.dtype)
        for i, (_, value) in enumerate(kept[1:], start=n):
            attended = attended + shares[..., i : i + 1] * value
        return attended.transpose(1, 2).flatten(-2)


def make_ppd(
    model: ModelConfig,
    of_model: Mapping[str, Float32],
    context: int,
    rng: np.random.Generator,
    n_steps: int,
    dtype: torch.dtype = torch.float32,
) -> Inside:
    """Returns prompt tokens that are not trained yet. of_model: all layers of the model."""
    mean = of_model["embed_tokens.weight"].mean(0)
    learned = {f"{_EMBEDDING}.{i}.weight": mean + spread(rng, len(mean)) for i in range(n_steps)}
    return Inside(model, of_model, learned, context, [0] * n_steps, dtype)


def make_hidden_transfer(
    model: ModelConfig,
    of_model: Mapping[str, Float32],
    context: int,
    rng: np.random.Generator,
    layers: Sequence[int],
    dtype: torch.dtype = torch.float32,
) -> Inside:
    """Returns maps that are not trained yet. of_model: all layers of the model."""
    size = model.hidden_size
    learned = {f"{_MAP}.{i}.weight": passing(rng, size) for i in range(len(layers))}
    return Inside(model, of_model, learned, context, layers, dtype)
