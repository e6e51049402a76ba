"""Gathers what KV maps are fitted from: hidden states, and the keys and values they lead to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedec.models.config import ModelConfig
from edgedec.models.hidden_states import normed
from edgedec.models.kv_maps import N_SINKS
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.plain_kv import plain_kv
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.features.corpus import corpus_files, text_of
from edgedec.training.kv_maps.kv_maps import LayerMaps
from edgedec.training.kv_maps.kv_progress import CorpusWindows, ReadSoFar

WINDOW = 1024
"""Tokens that are read at once, as one text."""

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Fitted:
    """Maps, the tokens they were fitted on, and the share of variance they miss."""

    maps: tuple[LayerMaps, ...]
    n_tokens: int
    unexplained: float
    held_out: float


def corpus_windows(
    paths: Iterable[Path],
    encode: Callable[[str], list[int]],
    n_tokens: int,
    context: int = WINDOW,
) -> Iterator[list[int]]:
    """Yields windows of the text files below ``paths``, ``n_tokens`` in all.

    Each file is read from its beginning, at most one window of it, so that many are seen.

    context: most tokens of a window.
    """
    n_left = n_tokens
    for path in corpus_files(paths):
        if n_left <= 0:
            return
        if (text := text_of(path)) is None:
            continue
        tokens = encode(text[: 8 * WINDOW])[: min(WINDOW, context, n_left)]
        if len(tokens) > 2 * N_SINKS:
            n_left -= len(tokens)
            yield tokens


def fit(
    sequence: TokenSequence, config: ModelConfig, exit_layer: int, reading: CorpusWindows
) -> Fitted:
    """Returns maps from the hidden states behind ``exit_layer`` layers.

    Raises:
        ConfigError: There are too few tokens.
        OSError: The file of the reading cannot be written.
    """
    n_targets = (config.n_layers - exit_layer) * 2 * config.n_kv_heads * config.head_size

    def read(tokens: list[int], _: ReadSoFar) -> Iterator[tuple[Float32, Float32]]:
        hidden, targets = _read(sequence, config, exit_layer, tokens)
        yield normed(hidden, config.rms_norm_eps), targets

    state = reading.sums([(config.hidden_size, n_targets)], read)
    (fitted,), (held_out,) = state.fitted, state.held_out
    fitted.check()
    weights, bias = fitted.solve()
    parts = zip(
        np.split(weights, config.n_layers - exit_layer),
        np.split(bias, config.n_layers - exit_layer),
        strict=True,
    )
    maps = tuple(LayerMaps(exit_layer + i, w, b) for i, (w, b) in enumerate(parts))
    missed = held_out.unexplained(weights, bias) if held_out.n_rows else 1.0
    return Fitted(maps, state.n_tokens, fitted.unexplained(weights, bias), missed)


def _read(
    sequence: TokenSequence, config: ModelConfig, exit_layer: int, tokens: list[int]
) -> tuple[Float32, Float32]:
    """Returns hidden states behind the first layers, and keys and values of the others."""
    sequence.truncate(0)
    sums = []
    # A pass makes room for all its rows: layers with a window then keep those of the whole text.
    size = len(tokens) if sequence.look_back else PREFILL_CHUNK
    for start in range(0, len(tokens), size):
        chunk = TokenTree.chain(tokens[start : start + size])
        early, late = range(exit_layer), range(exit_layer, config.n_layers)
        rows = sequence.run(Pass(sequence, chunk, (), (exit_layer,), layers=early))
        hidden = rows.hidden[exit_layer].copy()
        sequence.run(Pass(sequence, chunk, (), layers=late, entry=hidden))
        sequence.commit(range(len(chunk)))
        sums.append(hidden)
    return np.concatenate(sums), plain_kv(sequence.snapshot().kv_rows, config, exit_layer)
