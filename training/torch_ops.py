"""Recipes in torch: what every use of one has in common."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from edgedec.models.blocks import SUPPRESSED, Ops
from edgedec.models.config import ModelConfig


class TorchOps(Ops[Tensor]):
    """`Ops` over tensors [B, T, features], but for what passes differ in: tokens and attention."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @abstractmethod
    def weight(self, name: str) -> Tensor:
        """Returns the weight ``name``."""

    def rms_norm(self, x: Tensor, weight: str) -> Tensor:
        """Returns `x / sqrt(mean(x^2) + eps) * weight` in float32."""
        g = self.weight(weight)
        return functional.rms_norm(x.float(), g.shape, g, self.config.rms_norm_eps)

    def head_norm(self, x: Tensor, weight: str) -> Tensor:
        """Returns `rms_norm` of each head of ``x`` by itself."""
        return self.rms_norm(split_heads(x, self.config.head_size), weight).flatten(-2)

    def linear(self, x: Tensor, weight: str, bias: str | None = None) -> Tensor:
        """Returns `x @ W.T + b`, the products computed as W is stored."""
        matrix = self.weight(weight)
        x, b = x.to(matrix.dtype), None if bias is None else self.weight(bias)
        if b is None or b.dtype == matrix.dtype:
            return functional.linear(x, matrix, b)
        return functional.linear(x, matrix) + b

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """Returns `activation(gate) * up`."""
        if self.config.activation == "gelu_tanh":
            return functional.gelu(gate, approximate="tanh") * up
        return functional.silu(gate) * up

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        """Returns ``x`` times the sigmoid of ``gate``."""
        return x * torch.sigmoid(gate)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Returns the sum."""
        return a + b

    def select_rows(self, x: Tensor) -> Tensor:
        """Returns all rows."""
        return x

    def hidden(self, x: Tensor, layer: int) -> None:
        """Notes nothing."""

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """Returns ``x`` times ``factor``."""
        return x * factor

    def soft_cap(self, x: Tensor, bound: float) -> Tensor:
        """Returns `bound * tanh(x / bound)`."""
        return bound * torch.tanh(x / bound)

    def suppress(self, logits: Tensor) -> Tensor:
        """Returns logits, lower for the suppressed tokens."""
        row = logits.new_zeros(self.config.n_logits)
        row[list(self.config.suppressed_tokens)] = SUPPRESSED
        return logits + row

    def scores(self, products: Tensor) -> Tensor:
        """Returns products of q and k scaled, and capped where the model does that."""
        scores, cap = products * self.config.product_scale, self.config.attention_softcap
        return self.soft_cap(scores, cap) if cap else scores

    def experts(self, x: Tensor, router: Tensor, prefix: str) -> Tensor:
        """Raises, for mixtures of experts are refused before."""
        raise NotImplementedError(prefix)


def split_heads(x: Tensor, head_size: int) -> Tensor:
    """Returns [B, T, H * d] as [B, T, H, d]."""
    return x.reshape(*x.shape[:-1], -1, head_size)


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns heads [B, H, T, d], channel i rotated with channel i + d / 2.

    Shapes: cos, sin [..., T, d / 2].
    """
    low, high = heads.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1).to(heads.dtype)


def has_fast_bfloat16(device: torch.device) -> bool:
    """Returns whether bfloat16 is multiplied faster than float32: by a GPU, by AMX, or by AMD.

    With AVX-512's products of bfloat16 alone an Emerald Rapids whose AMX is hidden is slower: 158
    GFLOPS against 278 for a training's matrices, on two cores. A Zen 4 reaches 400 against 90 to
    180.
    """
    if device.type == "cuda":
        return True
    can = torch.cpu.get_capabilities()
    is_amd = str(can.get("cpu_name", "")).startswith("AMD")
    return bool(can.get("amx_tile") or (is_amd and can.get("avx512_bf16")))
