"""What adapters do to weights: matrices added, magnitudes set, whole weights or rows replaced.

Sources: huggingface/peft ``src/peft/tuners/lora/layer.py``, ``dora.py`` and
``src/peft/tuners/trainable_tokens/layer.py`` (Apache-2.0), ml-explore/mlx-lm
``mlx_lm/tuner/lora.py`` and ``dora.py`` (MIT).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from edgedec.models.weights import Weight

Floats = npt.NDArray[np.float32]


class Edit(Protocol):
    """A change of a matrix of the published model."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor, [N, K]."""

    def edited(self, values: Floats, weight: Weight, start: int, stop: int) -> Floats:
        """Returns rows [start, stop) of our ``weight``, which are ``values`` so far."""


@dataclass(frozen=True)
class Pair:
    """``scale * up @ down`` is added; then rows get the norms ``magnitude``, if there are any.

    Shapes: down [r, K], up [N, r], magnitude [N].
    """

    down: Floats
    up: Floats
    scale: float
    magnitude: Floats | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor, [N, K]."""
        return len(self.up), self.down.shape[1]

    def edited(self, values: Floats, weight: Weight, start: int, stop: int) -> Floats:
        """Returns rows [start, stop) of our ``weight`` with the product added."""
        up = weight.hf.take(self.up, weight.shape[0], start, stop)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            added: Floats = values + np.float32(self.scale) * (up @ self.down)
            if self.magnitude is None:
                return added
            magnitudes = weight.hf.take(self.magnitude[:, np.newaxis], weight.shape[0], start, stop)
            norms = np.linalg.norm(added, axis=1, keepdims=True)
            return np.asarray(added * (magnitudes / norms), np.float32)


@dataclass(frozen=True)
class Replaced:
    """A whole weight takes the place of the published one, or comes ``share`` of the way nearer.

    is_of_both: the weight is the embedding's and the head's.
    """

    values: Floats
    share: float
    is_of_both: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor."""
        return self.values.shape

    def edited(self, values: Floats, weight: Weight, start: int, stop: int) -> Floats:
        """Returns rows [start, stop) of our ``weight``."""
        replacement = weight.hf.take(self.values, weight.shape[0], start, stop)
        return _nearer(values, replacement, self.share)

    def of_vector(self, values: Floats, weight: Weight) -> Floats:
        """Returns our whole vector ``weight``."""
        taken = np.array(weight.hf.take(self.values, weight.shape[0]), np.float32)
        return _nearer(values, weight.hf.values(taken), self.share)


@dataclass(frozen=True)
class AddedToVector:
    """A vector is added to a published bias."""

    values: Floats

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor."""
        return self.values.shape

    def of_vector(self, values: Floats, weight: Weight) -> Floats:
        """Returns our whole vector ``weight``."""
        added: Floats = values + weight.hf.take(self.values, weight.shape[0])
        return added


VectorEdit = Replaced | AddedToVector


@dataclass(frozen=True)
class TokenRows:
    """Rows of an embedding are replaced: those of ``ids``."""

    ids: tuple[int, ...]
    values: Floats
    share: float
    n_rows: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the published tensor, [V, hidden_size]."""
        return self.n_rows, self.values.shape[1]

    def edited(self, values: Floats, weight: Weight, start: int, stop: int) -> Floats:
        """Returns rows [start, stop) of the embedding."""
        edited = np.array(values, np.float32)
        for token, row in zip(self.ids, self.values, strict=True):
            if start <= token < stop:
                edited[token - start] = _nearer(edited[token - start], row, self.share)
        return edited


def _nearer(values: Floats, exact: Floats, share: float) -> Floats:
    return exact if share == 1 else values + np.float32(share) * (exact - values)
