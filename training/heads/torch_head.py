"""A draft head in torch: the same recipe as its graph, over whole texts, with training-time test.

Step 0 reads the target model's hidden states. Step s reads what step s - 1 made of the row before,
as drafting does s tokens deep: its row t sees rows of step 0 up to t - s, then one of each step
between, then itself. Of light heads step s is head s, whose row t reads the hidden state of token
t - s - 1 and, where it is `HYDRA`, the tokens since.

Source: EAGLE-3 (Li et al., 2025), section 3.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import (
    ADAPTER,
    EAGLE,
    HYDRA,
    LIGHT_HEADS,
    OF_MODEL,
    TOKEN_NORM,
    HeadOps,
    head_recipe,
)
from edgedec.models.rope import rope_of, rope_tables
from edgedec.training.torch_ops import TorchOps, rotated, split_heads

_ROWS = 256  # that are rounded at once


class TorchWeights(nn.Module):
    """Weights by our names, trained but for those of `OF_MODEL`; and what rotates its layers."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, npt.NDArray[np.float32]],
        context: int,
    ) -> None:
        """weights: of the embedding only the rows of tokens that occur."""
        super().__init__()
        self.config = config
        self._weights = nn.ParameterDict(
            {
                _key(name): nn.Parameter(torch.tensor(values), requires_grad=name not in OF_MODEL)
                for name, values in weights.items()
            }
        )
        ropes = {rope_of(config.layer(i)) for i in range(config.n_layers)}
        self._ropes = {
            rope: [torch.from_numpy(table) for table in rope_tables(config, context, rope)]
            for rope in ropes
        }

    def rope(self, layer: int) -> list[Tensor]:
        """Returns cosines and sines of the rotations of ``layer``."""
        return self._ropes[rope_of(self.config.layer(layer))]

    def weight(self, name: str) -> Tensor:
        """Returns the weight ``name``."""
        tensor: Tensor = self._weights[_key(name)]
        return tensor

    def trained(self) -> dict[str, nn.Parameter]:
        """Returns the weights that are trained, by name."""
        named = {key.replace("/", "."): weight for key, weight in self._weights.items()}
        return {name: weight for name, weight in named.items() if name not in OF_MODEL}

    def learned(self) -> dict[str, Tensor]:
        """Returns what `trained` came to, as `forward` computes with it."""
        return {name: weight.detach() for name, weight in self.trained().items()}


class _FourBit(torch.autograd.Function):
    """A matrix as the format ``q4_0`` holds it; its gradient is that of the matrix.

    Some rows after the other: what is made of them on the way stays in the cache.
    """

    @staticmethod
    def forward(ctx: Any, matrix: Tensor) -> Tensor:
        rounded = torch.empty_like(matrix)
        for rows, out in zip(torch.split(matrix, _ROWS), torch.split(rounded, _ROWS), strict=True):
            groups = functional.pad(rows, (0, -rows.shape[1] % 32)).reshape(len(rows), -1, 32)
            most, least = groups.amax(-1, keepdim=True), groups.amin(-1, keepdim=True)
            scale = (torch.where(most >= -least, most, least) / -8).half().float()
            codes = (groups / scale).nan_to_num_(0.0).round_().clamp_(-8, 7)
            out.copy_(codes.mul_(scale).reshape(len(rows), -1)[:, : rows.shape[1]])
        return rounded

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def four_bit(matrix: Tensor) -> Tensor:
    """Returns ``matrix`` [N, K] as the format ``q4_0`` holds it, for gradients as it is.

    `edgedec.export.quantising.quantise` finds these codes and scales again, for nothing is lost by
    them.

    Source: the straight-through estimator (Bengio et al., 2013).
    """
    rounded: Tensor = _FourBit.apply(matrix)  # type: ignore[no-untyped-call]
    return rounded


class TorchHead(TorchWeights):
    """A head, whose `forward` gives logits of every step."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, npt.NDArray[np.float32]],
        context: int,
        kind: str = EAGLE,
        is_four_bit: bool = False,
    ) -> None:
        """is_four_bit: it computes with what 4 bits will leave of the matrices it trains."""
        super().__init__(config, weights, context)
        self.kind = kind
        self._is_four_bit = is_four_bit

    def weight(self, name: str) -> Tensor:
        """Returns the weight ``name``, rounded where it will be."""
        tensor = super().weight(name)
        is_rounded = self._is_four_bit and tensor.ndim == 2 and name not in OF_MODEL
        return four_bit(tensor) if is_rounded else tensor

    def learned(self) -> dict[str, Tensor]:
        """Returns what `trained` came to, rounded where it will be."""
        return {name: self.weight(name).detach() for name in self.trained()}

    def forward(self, tokens: Tensor, hidden: Tensor, n_steps: int) -> list[Tensor]:
        """Returns the logits after each token, a tensor for each step.

        Shapes: tokens [B, T], places in the embedding; hidden [B, T, L * D] of the same tokens, of
            which light heads read the last layer's; results [B, n, N] of the last n tokens: step s
            says nothing of the first s tokens, nor light heads of the one after those, which no
            state stands before. An adapter has one step: of drafted tokens it reads the same.
        """
        if self.kind == ADAPTER:
            return [head_recipe(TorchHeadOps(self, tokens, hidden, []), self.config, ADAPTER)]
        if self.kind in LIGHT_HEADS:
            state = hidden[..., -self.config.hidden_size :]
            return [self._light(tokens, state, step) for step in range(n_steps)]
        size = self.config.hidden_size
        past: list[tuple[Tensor, Tensor]] = []
        features = functional.pad(_shifted(hidden, 1), (0, size))
        logits = []
        for step in range(n_steps):
            ops = TorchHeadOps(self, tokens, features, past)
            logits.append(head_recipe(ops, self.config)[:, step:])
            features = functional.pad(_shifted(ops.output, 1), (hidden.shape[-1], 0))
        return logits

    def _light(self, tokens: Tensor, state: Tensor, step: int) -> Tensor:
        """Returns the logits of light head ``step``."""
        n_rows = max(0, tokens.shape[1] - step - 1)
        parts = [state[:, :n_rows]]
        if self.kind == HYDRA and step:
            token = TorchHeadOps(self, tokens, state, []).normed_tokens()
            parts += [token[:, i : i + n_rows] for i in range(1, step + 1)]
        ops = TorchHeadOps(self, tokens[:, step + 1 :], torch.cat(parts, -1), [])
        return head_recipe(ops, self.config, self.kind, (step,))


class TorchHeadOps(TorchOps, HeadOps[Tensor]):
    """`HeadOps` over tensors [B, T, features], for one step.

    past: rotated keys and values of the steps before; this step's are appended.
    """

    def __init__(
        self,
        head: TorchWeights,
        tokens: Tensor,
        features: Tensor,
        past: list[tuple[Tensor, Tensor]],
    ) -> None:
        super().__init__(head.config)
        self._head = head
        self._tokens = tokens
        self._features = features
        self._past = past
        self.output = features

    def weight(self, name: str) -> Tensor:
        """Returns the weight ``name``."""
        return self._head.weight(name)

    def embed(self, weight: str) -> Tensor:
        """Returns the embedding of each token."""
        return functional.embedding(self._tokens, self.weight(weight))

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads, after appending this step's keys and values."""
        c, step = self.config, len(self._past)
        n_groups = c.n_heads // c.n_kv_heads
        n = q.shape[1]
        queries = self._rotated(q, layer).reshape(len(q), c.n_kv_heads, n_groups, n, c.head_size)
        values = split_heads(v, c.head_size).transpose(1, 2)
        self._past.append((self._rotated(k, layer), values))
        sees = torch.ones(n, n, dtype=torch.bool, device=q.device).tril(-step)
        first = queries @ self._past[0][0].unsqueeze(2).transpose(-1, -2)
        scores = [self.scores(first).masked_fill(~sees, -torch.inf)]
        later = [
            tuple(_shifted(part, step - s, dim=2).unsqueeze(2) for part in self._past[s])
            for s in range(1, step + 1)
        ]
        scores += [self.scores((queries * key).sum(-1, keepdim=True)) for key, _ in later]
        shares = torch.cat(scores, -1).float().softmax(-1).to(values.dtype)
        attended = shares[..., :n] @ self._past[0][1].unsqueeze(2)
        for i, (_, value) in enumerate(later, start=n):
            attended = attended + shares[..., i : i + 1] * value
        return attended.flatten(1, 2).transpose(1, 2).flatten(-2)

    def hidden(self, x: Tensor, layer: int) -> None:
        """Notes the head's outputs."""
        self.output = x

    def features(self) -> Tensor:
        """Returns the features of each row."""
        return self._features

    def beside_features(self, x: Tensor) -> Tensor:
        """Returns each row with its features."""
        return torch.cat([x, self._features], dim=-1)

    def first(self, x: Tensor, n: int) -> Tensor:
        """Returns the first ``n`` numbers of each row."""
        return x[..., :n]

    def normed_tokens(self) -> Tensor:
        """Returns the normed embedding of each token."""
        return self.rms_norm(self.embed("embed_tokens.weight"), TOKEN_NORM)

    def _rotated(self, x: Tensor, layer: int) -> Tensor:
        """Returns heads [B, H, T, d], channel i rotated with channel i + d / 2."""
        heads = split_heads(x, self.config.head_size).transpose(1, 2)
        cos, sin = (table[: x.shape[1]].to(x.device) for table in self._head.rope(layer))
        return rotated(heads, cos, sin)


def _shifted(x: Tensor, n: int, dim: int = 1) -> Tensor:
    """Returns ``x`` moved back by ``n`` rows, zeros before its first."""
    if n == 0:
        return x
    kept = x.narrow(dim, 0, max(0, x.shape[dim] - n))
    zeros = torch.zeros_like(x.narrow(dim, 0, x.shape[dim] - kept.shape[dim]))
    return torch.cat([zeros, kept], dim=dim)


def _key(name: str) -> str:
    """Returns ``name`` as a `ParameterDict` may have it."""
    return name.replace(".", "/")
