"""How far what a model that drafts says is from what the target model says.

Of the target model's distribution its likeliest tokens are known; all others count as one. Drafts
of a model whose total variation distance is d are accepted, under sampling, with probability
1 - d (Leviathan et al., 2023).

Source: DistillSpec (Zhou et al., 2024), table 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

_MIN = 1e-6
"""Least probability of all other tokens together, so that it has a logarithm."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Called with log-probabilities of the model that drafts [B, T, N], those of the target model, as
probabilities [B, T, N], 0 where it is not known, and which rows are text [B, T]."""


def cross_entropy(log_q: Tensor, p: Tensor, is_real: Tensor) -> Tensor:
    """Returns the mean of -log q under p, of the known tokens alone; 0 where there are none."""
    real = p * is_real.unsqueeze(-1)
    return -(real * log_q).sum() / real.sum().clamp(min=_MIN)


def forward_kl(log_q: Tensor, p: Tensor, is_real: Tensor) -> Tensor:
    """Returns the mean of KL(p || q)."""
    p, q = _whole(log_q, p)
    return _mean(_kl(p, q), is_real)


def reverse_kl(log_q: Tensor, p: Tensor, is_real: Tensor) -> Tensor:
    """Returns the mean of KL(q || p)."""
    p, q = _whole(log_q, p)
    return _mean(_kl(q, p), is_real)


def jensen_shannon(log_q: Tensor, p: Tensor, is_real: Tensor) -> Tensor:
    """Returns the mean Jensen-Shannon divergence."""
    p, q = _whole(log_q, p)
    middle = (p + q) / 2
    return _mean((_kl(p, middle) + _kl(q, middle)) / 2, is_real)


def total_variation(log_q: Tensor, p: Tensor, is_real: Tensor) -> Tensor:
    """Returns the mean total variation distance."""
    p, q = _whole(log_q, p)
    return _mean((p - q).abs().sum(-1) / 2, is_real)


LOSSES: Mapping[str, Loss] = {
    "kl": forward_kl,
    "reverse-kl": reverse_kl,
    "jsd": jensen_shannon,
    "tvd": total_variation,
}
"""Losses of draft models by name."""


def _whole(log_q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Returns both distributions over the known tokens and all others as one."""
    known = p > 0
    q = log_q.exp() * known
    return _with_rest(p, known), _with_rest(q, known)


def _with_rest(probs: Tensor, known: Tensor) -> Tensor:
    floor = torch.where(known, _MIN, 0.0)
    rest = (1 - probs.sum(-1, keepdim=True)).clamp(min=_MIN)
    return torch.cat([torch.maximum(probs, floor), rest], -1)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    """Returns KL(p || q) of each row; where both are 0, nothing."""
    unit = torch.ones_like(p)
    ratio = torch.where(p > 0, p, unit).log() - torch.where(q > 0, q, unit).log()
    return (p * ratio).sum(-1)


def _mean(of_rows: Tensor, is_real: Tensor) -> Tensor:
    return (of_rows * is_real).sum() / is_real.sum()
