"""Maps that predict keys and values, as a bundle states and carries them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.models.kv_formats import kv_formats_of

HIDDEN, WRITTEN = "hidden", "written"
"""Ports of a graph of maps besides those of positions, parents, past length and KV cache: hidden
states [1, T, hidden_size] float32 in, or the other model's keys and values, and the number of rows
[1] int64 out."""

KV_MAPS, DRAFT_KV_MAPS = "kv_maps", "draft_kv_maps"
"""Kinds of the entries below, and their names among a bundle's auxiliary parts."""

N_SINKS = 4
"""First tokens of a text, which attention treats as no others: their rows are never predicted."""

_MAX_COUNT = 2**31 - 1
_AGAIN = "fit them again with `edgedec train kv`"


@dataclass(frozen=True)
class _MapsEntry:
    """What maps are that write a model's KV cache.

    kind: one of those above. model: fingerprint of the model whose keys and values they write.
    graph, weights: files, keys of `BundleManifest.files`. kv_format: of the KV cache that they
    write. corpus: what they were fitted on. n_tokens: of it. unexplained: share of the variance of
    keys and values that they miss, over all layers they write, on the text they were fitted on.
    held_out: the same on text they were not.
    """

    kind: str
    model: str
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

    def _check_model(self, name: str, got: str, expected: str, kv_format: str) -> None:
        if got != expected:
            raise ConfigError(
                f"the KV maps were fitted for the {name} {got[:12]}, this one is {expected[:12]}: "
                f"{_AGAIN}"
            )
        if self.kv_format != kv_format:
            raise ConfigError(
                f"the KV maps write a {self.kv_format} KV cache, the model's is {kv_format}: "
                f"{_AGAIN}"
            )


@dataclass(frozen=True)
class KVMapsEntry(_MapsEntry):
    """Maps from the residual stream behind the first layers to keys and values of all later ones.

    exit_layer: layers that are computed.
    """

    exit_layer: int

    def check_fits(self, model: str, config: ModelConfig, kv_format: str) -> None:
        """Raises a ConfigError, which names what differs, where the maps are of another model."""
        self._check_model("model", self.model, model, kv_format)
        if not 0 < self.exit_layer < config.n_layers:
            raise ConfigError(
                f"the KV maps begin after layer {self.exit_layer}, the model has layers 1 to "
                f"{config.n_layers}: {_AGAIN}"
            )


@dataclass(frozen=True)
class ModelKVMapsEntry(_MapsEntry):
    """Maps from the keys and values of the target model to those of all layers of the draft model.

    source: fingerprint of the model that they read.
    """

    source: str

    def check_fits(self, source: str, model: str, kv_format: str) -> None:
        """Raises a ConfigError, which names what differs, where the maps are of other models."""
        self._check_model("target model", self.source, source, kv_format)
        self._check_model("draft model", self.model, model, kv_format)


MapsEntry = KVMapsEntry | ModelKVMapsEntry
_ENTRIES: dict[str, type[MapsEntry]] = {
    KV_MAPS: KVMapsEntry,
    DRAFT_KV_MAPS: ModelKVMapsEntry,
}


def own_maps(auxiliary: Mapping[str, MapsEntry]) -> KVMapsEntry | None:
    """Returns the maps from a target model's own first layers, if a bundle has some."""
    entry = auxiliary.get(KV_MAPS)
    return entry if isinstance(entry, KVMapsEntry) else None


def draft_maps(auxiliary: Mapping[str, MapsEntry]) -> ModelKVMapsEntry | None:
    """Returns the maps from the target to the draft model, if a bundle has some."""
    entry = auxiliary.get(DRAFT_KV_MAPS)
    return entry if isinstance(entry, ModelKVMapsEntry) else None


def read_kv_maps(name: str, fields: Fields) -> MapsEntry:
    """Returns the entry ``name`` of the manifest, its types and ranges checked."""
    if (entry := _ENTRIES.get(name)) is None:
        fields.refuse_with(None, f"is unknown, expected one of {', '.join(_ENTRIES)}")
    fields.exactly({f.name for f in dataclasses.fields(entry)})
    if (kind := fields.text("kind")) != name:
        fields.fail("kind", kind, name)
    if (kv_format := fields.text("kv_format")) not in (known := kv_formats_of("panels")):
        fields.fail("kv_format", kv_format, f"one of {', '.join(known)}")
    texts = {key: fields.text(key) for key in ("kind", "model", "graph", "weights", "corpus")}
    numbers = {key: fields.number(key) for key in ("unexplained", "held_out")}
    shared: dict[str, Any] = {
        **texts,
        **numbers,
        "kv_format": kv_format,
        "n_tokens": fields.integer("n_tokens", least=1, most=2**62),
    }
    if entry is KVMapsEntry:
        return KVMapsEntry(
            **shared, exit_layer=fields.integer("exit_layer", least=1, most=_MAX_COUNT)
        )
    return ModelKVMapsEntry(**shared, source=fields.text("source"))
