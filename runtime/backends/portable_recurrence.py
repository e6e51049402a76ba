"""What recurrent layers keep, as it goes in and comes out of each pass of a portable graph."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.graph import (
    CONV_TAPS,
    STATE_WALK,
    KVLayout,
    new_rows_port,
    new_state_port,
    rows_port,
    state_port,
)
from edgedec.models.recurrence import conv_taps, state_walk
from edgedec.runtime.backends.recurrent import RecurrentState
from edgedec.runtime.sequences.token_tree import TokenTree

Array = npt.NDArray[Any]


class PortableRecurrence:
    """Gives the passes of one text what they read of its recurrent state, and takes what they made.

    ``state`` keeps it, as that of graphs that write in place, and says what a pass reads. Of its
    memory for states, whose sizes are those of the kernels, the first numbers are used.
    """

    def __init__(self, config: ModelConfig, layout: KVLayout) -> None:
        self._recurrence = config.recurrence
        self._layers = layout.recurrent_layers
        has_states = self._recurrence.has_states
        self._new_states = [new_state_port(i) for i in self._layers] if has_states else []
        self.state = RecurrentState(config, layout)

    @property
    def outputs(self) -> list[str]:
        """The graph's outputs for `take`."""
        return [*map(new_rows_port, self._layers), *self._new_states]

    def inputs(self, tree: TokenTree, n_past: int, n_known: int) -> dict[str, Array]:
        """Returns what a pass reads: ``n_known`` nodes of ``tree`` were computed before it."""
        recurrence, layers = self._recurrence, self._layers
        self.state.begin(n_past, tree)
        base, states, is_kept = self.state.reading()
        rows = self.state.rows_between(base - recurrence.look_back, n_past + n_known)
        inputs = {rows_port(layer): rows[i : i + 1] for i, layer in enumerate(layers)}
        if not recurrence.has_states:
            taps = conv_taps(tree.parents, recurrence.look_back, recurrence.conv_size)
            return {**inputs, CONV_TAPS: taps[n_known:]}
        walk = state_walk(tree.parents, n_known, n_past - base, is_kept, recurrence.conv_size)
        n_floats = math.prod(recurrence.state_sizes)
        matrices = states[:, :n_floats].reshape(-1, *recurrence.state_sizes)
        inputs |= dict(zip(map(state_port, layers), matrices, strict=True))
        return {**inputs, **dict(zip(STATE_WALK, walk, strict=True))}

    def take(
        self, results: Mapping[str, Array], n_past: int, tree: TokenTree, n_known: int
    ) -> None:
        """Takes what a pass returned: the rows that it read and its own, and states."""
        n_rows = len(tree) - n_known
        rows = [results[new_rows_port(layer)][0, -n_rows:] for layer in self._layers]
        states = [results[name].reshape(1, -1) for name in self._new_states]
        self.state.put_rows(n_past + n_known, np.stack(rows))
        if states:
            self.state.put_states(np.concatenate(states))
        self.state.finish(n_past)
