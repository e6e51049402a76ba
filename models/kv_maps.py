"""Maps that predict keys and values of later layers, as a bundle states and carries them."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.models.graph import KV_FORMATS_OF, KVFormat

HIDDEN, WRITTEN = "hidden", "written"
"""Ports of a graph of maps besides those of positions, parents, past length and KV cache: hidden
states [1, T, hidden_size] float32 in, and the number of rows [1] int64 out."""

KV_MAPS = "kv_maps"
"""Kind of the entries below, among a bundle's auxiliary parts."""

_MAX_COUNT = 2**31 - 1


@dataclass(frozen=True)
class KVMapsEntry:
    """Maps from the residual stream behind the first layers to keys and values of all later ones.

    kind: `KV_MAPS`. model: fingerprint of the model they were fitted for, on. exit_layer: layers
    that are computed. graph, weights: files, keys of `BundleManifest.files`. kv_format: of the KV
    cache that they write. corpus: what they were fitted on. n_tokens: of it.
    unexplained: share of the variance of keys and values that they miss, over all later layers, on
    the text they were fitted on. held_out: the same on text they were not.
    """

    kind: str
    model: str
    exit_layer: int
    graph: str
    weights: str
    kv_format: str
    corpus: str
    n_tokens: int
    unexplained: float
    held_out: float

    @property
    def files(self) -> tuple[str, ...]:
        """Its files, as keys of `BundleManifest.files`."""
        return (self.graph, self.weights)

    def check_fits(self, model: str, config: ModelConfig, kv_format: KVFormat) -> None:
        """Raises a ConfigError, which names what differs, where the maps are of another model."""
        again = "fit them again with `edgedec train kv`"
        if self.model != model:
            raise ConfigError(
                f"the KV maps were fitted for the model {self.model[:12]}, this one is "
                f"{model[:12]}: {again}"
            )
        if not 0 < self.exit_layer < config.n_layers:
            raise ConfigError(
                f"the KV maps begin after layer {self.exit_layer}, the model has layers 1 to "
                f"{config.n_layers}: {again}"
            )
        if self.kv_format != kv_format:
            raise ConfigError(
                f"the KV maps write a {self.kv_format} KV cache, the model's is {kv_format}: "
                f"{again}"
            )


def read_kv_maps(fields: Fields) -> KVMapsEntry:
    """Returns an entry of the manifest, its types and ranges checked."""
    fields.exactly({f.name for f in dataclasses.fields(KVMapsEntry)})
    if (kind := fields.text("kind")) != KV_MAPS:
        fields.fail("kind", kind, KV_MAPS)
    if (kv_format := fields.text("kv_format")) not in (known := KV_FORMATS_OF["panels"]):
        fields.fail("kv_format", kv_format, f"one of {', '.join(known)}")
    numbers: dict[str, Any] = {key: fields.number(key) for key in ("unexplained", "held_out")}
    return KVMapsEntry(
        kind=kind,
        model=fields.text("model"),
        exit_layer=fields.integer("exit_layer", least=1, most=_MAX_COUNT),
        graph=fields.text("graph"),
        weights=fields.text("weights"),
        kv_format=kv_format,
        corpus=fields.text("corpus"),
        n_tokens=fields.integer("n_tokens", least=1, most=2**62),
        **numbers,
    )
