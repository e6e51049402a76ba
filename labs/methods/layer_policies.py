"""Which sub-layers of the model run for each new token.

Sources: Unified Layer Skipping (Liu et al., 2024), SkipDecode (Del Corro et al., 2023), FFN-SkipLLM
(Jaiswal et al., 2024). None of them is fine-tuned for here, as the first two are in the papers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np

from edgedec.models.errors import ConfigError
from edgedec.runtime.config.layers import FFN, UNIFIED, LayersConfig
from edgedec.runtime.sequences.rows import Rows

Gates = tuple[bool, ...]
"""Sub-layers that run, as `Pass.layer_gates` states them."""

N_ENDS = 2
"""First and last layers whose MLPs always run with ffn."""


class LayerPolicy(ABC):
    """What runs for the tokens of one output.

    A layer that did not run for a token has no row of it in the KV cache, so none may run later
    whose attention was left out before.
    """

    hidden_layers: Sequence[int] = ()
    """Layers whose hidden states `learn` needs of passes in which all runs."""

    @abstractmethod
    def gates(self, n_new: int) -> Gates | None:
        """Returns what runs over the output's token ``n_new``, from 0; None where all does."""

    def learn(self, rows: Rows) -> None:
        """Looks at the rows of a pass in which all ran."""
        return


class Unified(LayerPolicy):
    """The same layers for every token, evenly spread; the first and the last are among them."""

    def __init__(self, n_layers: int, keep: float) -> None:
        n_kept = min(n_layers, max(2, round(keep * n_layers)))
        kept = {round(i * (n_layers - 1) / (n_kept - 1)) for i in range(n_kept)}
        self._gates = _of_layers(n_layers, kept)

    def gates(self, n_new: int) -> Gates | None:
        return self._gates


class SkipDecode(LayerPolicy):
    """The first layer and the last ones, fewer of these from token to token."""

    def __init__(self, n_layers: int, keep: float, over: int) -> None:
        self._n_layers = n_layers
        self._least = max(2, round(keep * n_layers))
        self._over = over

    def gates(self, n_new: int) -> Gates | None:
        share = min(1.0, n_new / self._over)
        n_kept = round(self._n_layers - (self._n_layers - self._least) * share)
        first_late = self._n_layers - (n_kept - 1)
        return _of_layers(self._n_layers, {0, *range(first_late, self._n_layers)})


class FeedForward(LayerPolicy):
    """All attention; no MLPs of layers that changed the hidden states little when last looked at.

    The paper looks within a pass and leaves out the MLPs that follow; here what a pass showed is
    left out of the next ones. It compares what is before and behind an MLP, this the whole layer.
    """

    def __init__(self, n_layers: int, setting: LayersConfig, known: Sequence[int]) -> None:
        middle = range(N_ENDS, n_layers - N_ENDS)
        self._seen = [i for i in middle if i in known and i + 1 in known]
        if not self._seen:
            raise ConfigError(
                "layers ffn compares the hidden states before and behind a layer, and this "
                f"bundle's graph returns those of {list(known)}: export the model again with "
                f"--hidden-layers {','.join(map(str, range(N_ENDS, n_layers - N_ENDS + 1)))}"
            )
        self.hidden_layers = sorted({j for i in self._seen for j in (i, i + 1)})
        self._n_layers = n_layers
        self._setting = setting
        self._closed: set[int] = set()

    def gates(self, n_new: int) -> Gates | None:
        late = n_new - self._setting.warm_up
        if late < 0 or late % self._setting.every == 0 or not self._closed:
            return None
        return tuple(i not in self._closed for i in range(2 * self._n_layers))

    def learn(self, rows: Rows) -> None:
        self._closed = {
            2 * i + 1
            for i in self._seen
            if _cosine(rows.hidden[i][-1], rows.hidden[i + 1][-1]) > self._setting.cosine
        }


def make_policy(
    setting: LayersConfig, n_layers: int, n_asked: int, known: Sequence[int]
) -> LayerPolicy:
    """Returns the policy of one output.

    n_asked: new tokens asked for. known: layers whose hidden states the graph returns.

    Raises:
        ConfigError: The policy needs hidden states that the graph does not return.
    """
    if setting.policy == UNIFIED:
        return Unified(n_layers, setting.keep)
    if setting.policy == FFN:
        return FeedForward(n_layers, setting, known)
    return SkipDecode(n_layers, setting.keep, setting.over or n_asked)


def _of_layers(n_layers: int, kept: set[int]) -> Gates:
    return tuple(i // 2 in kept for i in range(2 * n_layers))


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / size if size else 1.0
