"""Tiny random models shared by the tests: no download, the same weights every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from edgedec.models.blocks import weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat

TINY = ModelConfig(
    family="llama",
    vocab_size=83,
    hidden_size=32,
    intermediate_size=48,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_size=8,
    max_positions=64,
    rms_norm_eps=1e-5,
)


class MemorySource:
    """A `WeightSource` over random float32 matrices held in memory."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        self.n_releases = 0
        rng = np.random.default_rng(seed)
        self.weights: dict[str, npt.NDArray[np.float32]] = {}
        for name, shape in weight_shapes(config).items():
            spread = rng.standard_normal(shape)
            if name.endswith("norm.weight"):
                spread = 1 + 0.3 * spread
            elif len(shape) == 2:
                spread = spread / np.sqrt(shape[1])
            self.weights[name] = spread.astype(np.float32)

    def format(self, name: str) -> QuantFormat:
        assert name in self.weights
        return FORMATS["f32"]

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        return PlainTensor(FORMATS["f32"], self.weights[name][start:stop])

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self.weights[name]

    def release(self) -> None:
        self.n_releases += 1


@pytest.fixture(scope="session")
def make_source() -> Callable[..., MemorySource]:
    """Returns a maker of tiny random weights; keywords override fields of the config."""

    def make(seed: int = 0, **fields: Any) -> MemorySource:
        return MemorySource(ModelConfig.from_dict({**TINY.to_dict(), **fields}), seed)

    return make
