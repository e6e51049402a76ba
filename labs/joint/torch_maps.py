"""A target model in torch whose later rows see predicted keys and values of the earlier ones.

Its maps are trained, and with them the smaller model that they read, where there is one.

Source: KV Prediction (arXiv 2410.08391), section 3, for what is predicted while it is trained, and
for the losses, which all count alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from edgedec.models.config import ModelConfig
from edgedec.models.families import find_family
from edgedec.models.kv_maps import N_SINKS
from edgedec.training.heads.torch_head import TorchWeights
from edgedec.training.kv_maps.kv_maps import Float32, LayerMaps, Scales
from edgedec.training.torch_decoder import DecoderOps
from edgedec.training.torch_ops import split_heads

_Z_LOSS = 1e-4
"""What the square of a row's normaliser counts in a cross-entropy."""

KeysValues = tuple[Tensor, Tensor]
"""Of one layer, before rotation. Shapes: [B, T, n_kv_heads * head_size] each."""


@dataclass(frozen=True)
class Losses:
    """What a pass over texts lost.

    target: cross-entropy of the target model over predicted rows. reader: of the smaller model, 0
    without one. rows: mean absolute error of keys, and of values, summed over layers. agreement:
    share of the target model's first choices that stay. missed: share of the variance of keys and
    values that is not predicted, on average over layers.
    """

    target: Tensor
    reader: Tensor
    rows: Tensor
    agreement: Tensor
    missed: Tensor

    @property
    def total(self) -> Tensor:
        """What is made small."""
        return self.target + self.reader + self.rows


class MappedModel(TorchWeights):
    """The weights of a target model, which are frozen, maps, and what they read."""

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Float32],
        context: int,
        maps: Sequence[LayerMaps],
        scales: Scales | None = None,
        reader: TorchWeights | None = None,
    ) -> None:
        """reader: the smaller model; None: the target model's layers before those that are mapped.

        scales: of the reader's rows.
        """
        super().__init__(config, weights, context)
        self.requires_grad_(False)
        self.reader = reader
        self.exit_layer = maps[0].layer
        self._first = {m.layer: m.first for m in maps}
        self._maps = nn.ParameterDict()
        for m in maps:
            self._maps[f"{m.layer}/weight"] = nn.Parameter(torch.tensor(m.weights))
            self._maps[f"{m.layer}/bias"] = nn.Parameter(torch.tensor(m.bias))
        if scales is not None:
            self.register_buffer("mean", torch.tensor(scales.mean))
            self.register_buffer("deviation", torch.tensor(scales.deviation))

    def trained(self) -> dict[str, nn.Parameter]:
        """Returns the weights that are trained, by name."""
        found = {f"maps/{name}": p for name, p in self._maps.items()}
        if self.reader is not None:
            found |= {f"reader/{name}": p for name, p in self.reader.trained().items()}
        return found

    def predicted(self, features: Tensor) -> dict[int, KeysValues]:
        """Returns keys and values of the layers that are mapped. Shapes: features [B, T, D]."""
        found = {}
        for layer, first in self._first.items():
            weight, bias = self._maps[f"{layer}/weight"], self._maps[f"{layer}/bias"]
            read = features[..., first : first + weight.shape[1]]
            keys, values = functional.linear(read, weight, bias).chunk(2, dim=-1)
            found[layer] = keys, values
        return found

    def forward(self, tokens: Tensor, is_real: Tensor) -> Losses:
        """Returns the losses of texts. Shapes: tokens, is_real [B, T]."""
        with torch.no_grad():
            exact = KeepingOps(self, tokens)
            wanted = exact.logits()
        read, of_reader = self._read(tokens)
        ops = PredictingOps(self, tokens, exact.kept, read)
        logits = ops.logits()
        found = {layer: ops.predicted[layer] for layer in self._first}
        real = is_real[:, N_SINKS:].bool()
        errors = [_error(found[i], exact.kept[i], real) for i in self._first]
        same = (logits.argmax(-1) == wanted.argmax(-1))[:, N_SINKS:][real]
        return Losses(
            target=_cross_entropy(logits, tokens, is_real),
            reader=tokens.new_zeros((), dtype=torch.float32)
            if of_reader is None
            else _cross_entropy(of_reader, tokens, is_real),
            rows=torch.stack([absolute for absolute, _ in errors]).sum(),
            agreement=same.float().mean(),
            missed=torch.stack([missed for _, missed in errors]).mean(),
        )

    def _read(self, tokens: Tensor) -> tuple[dict[int, KeysValues], Tensor | None]:
        """Returns what is predicted from the reader's rows, and its logits, if there is one."""
        if self.reader is None:
            return {}, None
        ops = KeepingOps(self.reader, tokens)
        logits = ops.logits()
        rows = [part for layer in sorted(ops.kept) for part in ops.kept[layer]]
        scaled = (torch.cat(rows, -1) - self.mean) / self.deviation
        return self.predicted(scaled), logits


class KeepingOps(DecoderOps):
    """A pass that keeps keys and values by layer."""

    def __init__(self, weights: TorchWeights, tokens: Tensor) -> None:
        super().__init__(weights, tokens, tokens.new_zeros(0, dtype=torch.float32), [])
        self.kept: dict[int, KeysValues] = {}

    def logits(self) -> Tensor:
        """Returns the logits after each token. Shapes: [B, T, V]."""
        found: Tensor = find_family(self.config.family).recipe(self, self.config)
        return found

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads."""
        self.kept[layer] = k, v
        return super().attention(q, k, v, layer)


class PredictingOps(KeepingOps):
    """A pass in which a row's own keys and values are computed, those before it predicted."""

    def __init__(
        self,
        model: MappedModel,
        tokens: Tensor,
        exact: dict[int, KeysValues],
        predicted: dict[int, KeysValues],
    ) -> None:
        """exact: whose first rows no prediction replaces. predicted: from a reader, or nothing."""
        super().__init__(model, tokens)
        self._model = model
        self._exact = exact
        self.predicted = predicted

    def hidden(self, x: Tensor, layer: int) -> None:
        """Predicts from the residual stream behind the first layers, if those are the reader."""
        super().hidden(x, layer)
        if self._model.reader is None and layer == self._model.exit_layer:
            epsilon = self.config.rms_norm_eps
            self.predicted = self._model.predicted(
                functional.rms_norm(x.float(), x.shape[-1:], eps=epsilon)
            )

    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: int) -> Tensor:
        """Returns the attended heads; each row sees those of its window."""
        if layer not in self.predicted:
            return super().attention(q, k, v, layer)
        c, n, window = self.config, q.shape[1], self.config.layer(layer).window
        early = [
            torch.cat([exact[:, :N_SINKS], found[:, N_SINKS:]], 1)
            for exact, found in zip(self._exact[layer], self.predicted[layer], strict=True)
        ]
        queries = self._rotated(q, layer)
        keys, own_keys = (self._repeated(self._rotated(x, layer)) for x in (early[0], k))
        values, own_values = (
            self._repeated(split_heads(x, c.head_size).transpose(1, 2)) for x in (early[1], v)
        )
        itself = torch.eye(n, dtype=torch.bool, device=q.device)
        own = (queries * own_keys).sum(-1, keepdim=True)
        scores = self.scores(torch.where(itself, own, queries @ keys.transpose(-1, -2)))
        sees = torch.ones(n, n, dtype=torch.bool, device=q.device).tril()
        sees = sees.triu(1 - window) if window else sees
        shares = scores.masked_fill(~sees, -torch.inf).float().softmax(-1)
        of_own = shares.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        attended = shares @ values + of_own * (own_values - values)
        return attended.transpose(1, 2).flatten(-2)

    def _repeated(self, heads: Tensor) -> Tensor:
        """Returns KV heads [B, H_kv, T, d] for each query head."""
        return heads.repeat_interleave(self.config.n_heads // self.config.n_kv_heads, 1)


def _cross_entropy(logits: Tensor, tokens: Tensor, is_real: Tensor) -> Tensor:
    """Returns the mean of -ln p of each next token, and what keeps normalisers small."""
    real = is_real[:, 1:].bool()
    rows = logits[:, :-1][real].float()
    normaliser = rows.logsumexp(-1)
    of_next = rows.gather(-1, tokens[:, 1:][real].unsqueeze(-1)).squeeze(-1)
    return (normaliser - of_next).mean() + _Z_LOSS * (normaliser**2).mean()


def _error(found: KeysValues, exact: KeysValues, real: Tensor) -> KeysValues:
    """Returns the mean absolute error of keys plus that of values, and the variance missed.

    real: rows after the sinks that are text [B, T - N_SINKS].
    """
    rows = [(f[:, N_SINKS:][real], e[:, N_SINKS:][real]) for f, e in zip(found, exact, strict=True)]
    absolute = sum(((f - e).abs().mean() for f, e in rows), torch.zeros((), device=real.device))
    with torch.no_grad():
        both = [torch.cat(part, -1) for part in zip(*rows, strict=True)]
        missed = ((both[0] - both[1]) ** 2).sum() / ((both[1] - both[1].mean(0)) ** 2).sum()
    return absolute, missed
