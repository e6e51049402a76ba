"""Which sub-layers of the target model drafting leaves out, and what that was found to bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError
from edgedec.models.manifest import SKIP_KEY
from edgedec.runtime.drafting.draft_cost import Promise


@dataclass(frozen=True)
class SkipSet:
    """Sub-layers that are left out of a model of ``n_layers``, with ``vocab_size`` logits.

    off: 2i is the attention of layer i, 2i + 1 its MLP.
    """

    off: tuple[int, ...]
    n_layers: int
    vocab_size: int
    promise: Promise

    @property
    def layer_gates(self) -> tuple[bool, ...]:
        """The sub-layers that run, as a `Pass` states them."""
        return tuple(i not in self.off for i in range(2 * self.n_layers))

    @classmethod
    def read(cls, defaults: Mapping[str, Any], config: ModelConfig) -> SkipSet | None:
        """Returns what a manifest's defaults hold for a model; None if they hold nothing.

        Raises:
            BundleError: What they hold is no set of the model's sub-layers.
        """
        found = defaults.get(SKIP_KEY)
        if found is None:
            return None
        try:
            off = tuple(sorted({int(i) for i in found["off"]}))
            promise = Promise(float(found["cost"]), float(found["acceptance"]))
        except (TypeError, ValueError, LookupError, OverflowError):
            off, promise = (), Promise(0, 0)
        is_sane = 0 < promise.cost <= 1 and 0 <= promise.acceptance <= 1
        if not off or not is_sane or not 0 <= off[0] <= off[-1] < 2 * config.n_layers:
            raise BundleError(
                f"manifest.defaults.{SKIP_KEY} holds no set of sub-layers of this model: run "
                "`edgedec tune --skip` on the bundle again"
            )
        return cls(off, config.n_layers, config.n_logits, promise)
