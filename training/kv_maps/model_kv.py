"""Fits maps from the keys and values of one model to those of another with the same tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgedec.models.config import ModelConfig
from edgedec.models.kv_maps import N_SINKS
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.plain_kv import plain_kv
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.training.kv_maps.kv_maps import Float32, LayerMaps, RidgeSums, Scales
from edgedec.training.kv_maps.kv_progress import CorpusWindows, ReadSoFar

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


def nearest_layers(layer: int, n_layers: int, n_others: int) -> range:
    """Returns the layers of a model of ``n_others`` as deep as ``layer`` of one of ``n_layers``."""
    n_read = min(N_READ, n_others)
    middle = layer * (n_others - 1) / max(n_layers - 1, 1)
    first = min(max(round(middle - (n_read - 1) / 2), 0), n_others - n_read)
    return range(first, first + n_read)


def fit_model(origin: Reader, other: Reader, reading: CorpusWindows) -> ModelFitted:
    """Returns maps from what ``origin`` keeps of a text to what ``other`` does.

    Raises:
        ConfigError: There are too few tokens.
        OSError: The file of the reading cannot be written.
    """
    columns = _columns(origin, other)

    def read(tokens: list[int], state: ReadSoFar) -> Iterator[tuple[Float32, Float32]]:
        rows, targets = origin.read(tokens), other.read(tokens)
        if state.scales is None:
            state.scales = Scales.of(rows[N_SINKS:])
        scaled = state.scales.apply(rows)
        for read_of, part in zip(columns, np.split(targets, len(columns), axis=1), strict=True):
            yield scaled[:, read_of], part

    sizes = [(c.stop - c.start, other.width) for c in columns]
    state = reading.sums(sizes, read)
    state.fitted[0].check()
    assert state.scales is not None
    solved = [sums.solve() for sums in state.fitted]
    maps = tuple(
        LayerMaps(layer, *weights, read_of.start)
        for layer, (weights, read_of) in enumerate(zip(solved, columns, strict=True))
    )
    missed = _missed(state.fitted, maps), _missed(state.held_out, maps)
    return ModelFitted(maps, state.scales, state.n_tokens, *missed)


def _columns(origin: Reader, other: Reader) -> list[slice]:
    """Returns which of the numbers of ``origin`` each layer of ``other`` is predicted from."""
    n_origin, n_other = origin.config.n_layers, other.config.n_layers
    nearest = (nearest_layers(layer, n_other, n_origin) for layer in range(n_other))
    return [slice(r.start * origin.width, r.stop * origin.width) for r in nearest]


def _missed(sums: Sequence[RidgeSums], maps: Iterable[LayerMaps]) -> float:
    """Returns the share of the variance that maps miss, on average over layers; 1 without rows."""
    if not sums[0].n_rows:
        return 1.0
    missed = (s.unexplained(m.weights, m.bias) for s, m in zip(sums, maps, strict=True))
    return float(np.mean(list(missed)))
