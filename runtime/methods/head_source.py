"""Where an engine's draft head lies. It is opened only when a method asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edgedec.models.blocks import decoder_shapes
from edgedec.models.draft_heads import (
    ADAPTER,
    DFLASH,
    EAGLE,
    EAGLE3,
    EXIT,
    LIGHT_HEADS,
    MTP_LAYER,
    PARD2,
    PUBLISHED,
    HeadEntry,
    head_shapes,
)
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import BundleManifest, fingerprint_of
from edgedec.models.model_entry import ModelEntry
from edgedec.models.token_pairs import read_token_pairs
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.drafting.drafter_parts import Need
from edgedec.runtime.drafting.head_role import HeadRole
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.text.token_map import TokenMap

NEEDS = {
    EAGLE: Need.EAGLE,
    EXIT: Need.EXIT,
    ADAPTER: Need.EXIT,
    MTP_LAYER: Need.MTP,
    EAGLE3: Need.EAGLE,
    DFLASH: Need.DFLASH,
    PARD2: Need.PARD,
}
"""Kind of head that drafts in passes of its own -> what drafters need that has one."""


@dataclass(frozen=True)
class HeadSource:
    """A draft head and what opening it takes.

    folder: bundle that holds it. identity: names the head's files. affinity: where its threads
    stay. cost: of its pass over one row, in such passes of the target model, by the weights that it
    reads; of light heads, that of all of them. exit_costs: see `HeadRole`.
    """

    folder: Path
    entry: HeadEntry
    identity: str
    target_vocab_size: int
    threads: int
    context: int
    affinity: Affinity = field(default_factory=Affinity)
    cost: float = 1.0
    exit_costs: Mapping[int, float] = field(default_factory=dict)

    @property
    def need(self) -> Need | None:
        """What drafters need that has it; None of light heads, which run in the model's graph."""
        return NEEDS.get(self.entry.kind)

    @property
    def role(self) -> str:
        """What its costs are kept under."""
        return f"head-{self.identity}"

    @property
    def mtp(self) -> str | None:
        """Its kind, where it is in the target model's own graph, too."""
        return None if self.entry.joined is None else self.entry.kind

    def open(self) -> HeadRole:
        """Returns the head, opened; raises a BundleError where it is broken."""
        head = self.entry.head
        config = head.config
        assert head.head_ids is not None
        ids = read_head_ids(self.folder / head.head_ids, config.vocab_size).tolist()
        path = self.entry.token_pairs
        gate_size = config.hidden_size if config.n_candidates else 0
        pairs = path and read_token_pairs(
            self.folder / path, config.vocab_size, gate_size, config.n_candidates
        )
        model = open_model(self.folder, head, self.threads, self.affinity)
        return HeadRole(
            pool=SequencePool(model, self.context),
            token_map=TokenMap.same(self.target_vocab_size, config.vocab_size, ids),
            target_vocab_size=self.target_vocab_size,
            hidden_layers=self.entry.hidden_layers,
            epsilon=config.rms_norm_eps,
            release=release_model,
            exit_costs=self.exit_costs,
            is_adapter=self.entry.kind == ADAPTER,
            needs_features=self.entry.kind in PUBLISHED,
            has_raw_features=self.entry.kind == EAGLE3,
            mask_token=config.mask_token,
            block_size=config.block_size,
            predicts_next=config.predicts_next,
            token_pairs=pairs or None,
        )


def find_head(
    folder: Path, manifest: BundleManifest, threads: int, context: int, affinity: Affinity
) -> HeadSource | None:
    """Returns where the bundle's draft head lies, if it has one; reads no file.

    Raises:
        BundleError: The head is another model's, or contradicts itself.
    """
    entry, target = manifest.head, manifest.target
    if entry is None:
        return None
    try:
        fingerprint = fingerprint_of(manifest, manifest.target_name)
        entry.check_fits(fingerprint, target.config, target.contract.can.hidden)
    except ConfigError as error:
        raise BundleError(str(error)) from None
    exits = entry.hidden_layers if NEEDS.get(entry.kind) is Need.EXIT else ()
    return HeadSource(
        folder=folder,
        entry=entry,
        identity="-".join(manifest.files[path].sha256[:8] for path in entry.files),
        target_vocab_size=target.config.n_logits,
        threads=threads,
        context=min(context, entry.head.context),
        affinity=affinity,
        cost=_share(entry, target, *exits[:1]),
        exit_costs={layer: _share(entry, target, layer) for layer in exits},
    )


def _share(entry: HeadEntry, target: ModelEntry, n_early: int = 0) -> float:
    """Returns which share of the target model's weights a pass reads, or that of all light heads.

    Each of these reads the LM head. n_early: layers of the target model that run before it.
    """
    head, of_target = entry.head, decoder_shapes(target.config)
    whole = target.n_bits(of_target)
    shapes = head_shapes(head.config, head.contract.can.features, entry.kind)
    if entry.kind not in LIGHT_HEADS:
        names = tuple(f"layers.{i}." for i in range(n_early))
        early = {name: shape for name, shape in of_target.items() if name.startswith(names)}
        return (target.n_bits(early) + head.n_bits(shapes)) / whole
    of_logits = {name: shape for name, shape in shapes.items() if name.startswith("lm_head.")}
    of_layers = {name: shape for name, shape in shapes.items() if name.startswith("layers.")}
    n_bits = head.n_bits(of_layers) + head.config.n_layers * head.n_bits(of_logits)
    return n_bits / whole
