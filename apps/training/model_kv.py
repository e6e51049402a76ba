"""Fits maps from the keys and values of one model to those of another with the same tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from edgedec.apps.training.kv import HELD_OUT, N_SINKS
from edgedec.export.kv_maps import Float32, LayerMaps, RidgeSums, Scales
from edgedec.models.config import ModelConfig
from edgedec.runtime.sessions.passes import run_passes
from edgedec.runtime.sessions.plain_kv import plain_kv
from edgedec.runtime.sessions.prefill import feed
from edgedec.runtime.sessions.sequence import TokenSequence

N_READ = 3
"""Layers of the one model that the keys and values of a layer of the other are predicted from."""


@dataclass(frozen=True)
class Reader:
    """A model that reads texts. sequence: of its own, which nobody else needs."""

    sequence: TokenSequence
    config: ModelConfig

    @property
    def width(self) -> int:
        """Keys and values of a token in one layer."""
        return 2 * self.config.n_kv_heads * self.config.head_size

    def read(self, tokens: list[int]) -> Float32:
        """Returns keys before their rotation, and values. Shapes: [T, n_layers * width]."""
        self.sequence.truncate(0)
        run_passes(feed(self.sequence, tokens, with_logits=False))
        return plain_kv(self.sequence.snapshot().kv_rows, self.config)


@dataclass(frozen=True)
class ModelFitted:
    """Maps and what they read rows with; the tokens they were fitted on; what they miss."""

    maps: tuple[LayerMaps, ...]
    scales: Scales
    n_tokens: int
    unexplained: float
    held_out: float


class _Sums:
    """The sums of all layers of the model whose keys and values are predicted."""

    def __init__(self, origin: Reader, other: Reader) -> None:
        self._n_out = other.width
        n_layers = origin.config.n_layers, other.config.n_layers
        first = [nearest_layers(i, *reversed(n_layers)) for i in range(n_layers[1])]
        self.columns = [slice(r.start * origin.width, r.stop * origin.width) for r in first]
        self.layers = [RidgeSums(c.stop - c.start, self._n_out) for c in self.columns]

    def add(self, features: Float32, targets: Float32) -> None:
        """Takes rows in, as `Reader.read` returns them of the one and the other."""
        parts = np.split(targets, len(self.layers), axis=1)
        for columns, sums, part in zip(self.columns, self.layers, parts, strict=True):
            sums.add(features[:, columns], part)


def nearest_layers(layer: int, n_layers: int, n_others: int) -> range:
    """Returns the layers of a model of ``n_others`` as deep as ``layer`` of one of ``n_layers``."""
    n_read = min(N_READ, n_others)
    middle = layer * (n_others - 1) / max(n_layers - 1, 1)
    first = min(max(round(middle - (n_read - 1) / 2), 0), n_others - n_read)
    return range(first, first + n_read)


def fit_model(
    origin: Reader,
    other: Reader,
    windows: Iterable[list[int]],
    report: Callable[[int], None] = lambda n_tokens: None,
) -> ModelFitted:
    """Returns maps from what ``origin`` keeps of a text to what ``other`` does.

    report: called with the tokens read so far.

    Raises:
        ConfigError: There are too few tokens.
    """
    fitted, held_out = _Sums(origin, other), _Sums(origin, other)
    scales, n_tokens = None, 0
    for i, tokens in enumerate(windows):
        rows, targets = (reader.read(tokens)[N_SINKS:] for reader in (origin, other))
        scales = scales or Scales.of(rows)
        (held_out if i % HELD_OUT == 1 else fitted).add(scales.apply(rows), targets)
        n_tokens += len(tokens)
        report(n_tokens)
    fitted.layers[0].check()
    assert scales is not None
    solved = [sums.solve() for sums in fitted.layers]
    maps = tuple(
        LayerMaps(layer, *found, columns.start)
        for layer, (found, columns) in enumerate(zip(solved, fitted.columns, strict=True))
    )
    return ModelFitted(maps, scales, n_tokens, _missed(fitted, maps), _missed(held_out, maps))


def _missed(sums: _Sums, maps: Iterable[LayerMaps]) -> float:
    """Returns the share of the variance that maps miss, on average over layers; 1 without rows."""
    if not sums.layers[0].n_rows:
        return 1.0
    missed = (s.unexplained(m.weights, m.bias) for s, m in zip(sums.layers, maps, strict=True))
    return float(np.mean(list(missed)))
