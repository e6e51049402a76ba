"""Where an engine's draft model lies. It is opened only when a method asks for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Literal

from edgedec.models.blocks import decoder_shapes
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import TOKENIZER_NAME, BundleManifest, fingerprint_of, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.decoding.switching.pair import Pair
from edgedec.runtime.drafting.draft_kv_maps import DraftKVMaps
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.session_memory import DRAFT, KnownModel, SessionMemory
from edgedec.runtime.text.token_map import TokenMap, spellings


@dataclass(frozen=True)
class DraftSource:
    """A draft model and what opening it takes.

    folder: bundle that holds it. tokenizers: files of the target model's and of its own, None
    where they are the same. fingerprint: names what decides the rows of its KV cache. memory: of
    the engine, which gives its sequences what earlier ones computed. pair: of target and draft
    model, if they may take turns. affinity: where its threads stay. mapped: opens what predicts its
    keys and values from the target model's, for texts in sequences of the pool it is given. cost:
    of its pass over one row, in such passes of the target model, by the weights that it reads.
    """

    folder: Path
    entry: ModelEntry
    tokenizers: tuple[Path, Path] | None
    target_vocab_size: int
    threads: int
    context: int
    fingerprint: str
    memory: SessionMemory = field(default_factory=SessionMemory)
    pair: Pair | None = None
    affinity: Affinity = field(default_factory=Affinity)
    mapped: Callable[[SequencePool], DraftKVMaps] | None = None
    cost: float = 1.0

    @property
    def model(self) -> KnownModel:
        """The draft model as a memory knows it."""
        return KnownModel(self.fingerprint, self.entry.config, self.context)

    @property
    def role(self) -> str:
        """What its costs are kept under: they depend on the model and where it computes."""
        key = f"{self.fingerprint} {self.entry.contract.providers[:1]}"
        return f"draft-{hashlib.sha256(key.encode()).hexdigest()[:12]}"

    def open(self) -> DraftRole:
        """Returns the draft model, opened.

        Raises:
            BundleError: The draft model is broken.
            ConfigError: Its tokenizer has nothing in common with the target model's.
        """
        token_map = self._token_map()
        model = open_model(self.folder, self.entry, self.threads, self.affinity)
        pool = self.memory.open(DRAFT, model, self.context)
        recall = partial(self.memory.recall, DRAFT)
        mapped = self.mapped and self.mapped(SequencePool(model, self.context))
        config = self.entry.config
        mask_token = config.mask_token if config.drafts_in_one_pass else None
        return DraftRole(
            pool, token_map, self.target_vocab_size, recall, release_model, mapped, mask_token
        )

    def _token_map(self) -> TokenMap:
        entry, size = self.entry, self.entry.config.vocab_size
        head_ids = None
        if entry.head_ids is not None:
            head_ids = read_head_ids(self.folder / entry.head_ids, size).tolist()
        if self.tokenizers is None:
            return TokenMap.same(self.target_vocab_size, size, head_ids)
        target, draft = (spellings(_read_json(path)) for path in self.tokenizers)
        return TokenMap.between(target, draft, size, head_ids)


def find_draft(
    folder: Path,
    manifest: BundleManifest,
    draft: Literal[True] | str | Path,
    threads: int,
    context: int,
) -> DraftSource | None:
    """Returns where the draft model lies; reads no more than manifests.

    Args:
        draft: True for the bundle's own draft model, if it has one; the path of another bundle
            whose target model shall draft.

    Raises:
        BundleError: That other bundle is broken.
        ConfigError: One of the two has an encoder.
    """
    other, listing = (folder, manifest) if draft is True else (Path(draft), None)
    listing = listing or read_manifest(other)
    model_name = listing.draft_name if draft is True else listing.target_name
    if model_name is None:
        return None
    entry, name = listing.models[model_name], TOKENIZER_NAME
    if manifest.target.config.fills_masks or entry.config.fills_masks:
        raise ConfigError(
            "a model that fills masks in neither drafts nor checks drafts: load it without a draft "
            "model"
        )
    if entry.encoder is not None or manifest.target.encoder is not None:
        raise ConfigError(
            f"{other} cannot draft for {folder}: a model with an encoder neither drafts nor has "
            "one that drafts for it; leave the draft model out"
        )
    if draft is True:
        own_name = str(PurePosixPath(entry.graph).parent / TOKENIZER_NAME)
        name = own_name if own_name in manifest.files else TOKENIZER_NAME
    if name not in listing.files:
        raise BundleError(f"the manifest of {other} lists no {name}: export it again")
    hashes = manifest.files[TOKENIZER_NAME].sha256, listing.files[name].sha256
    target, fingerprint = manifest.target.config, fingerprint_of(listing, model_name)
    return DraftSource(
        folder=other,
        entry=entry,
        tokenizers=None if hashes[0] == hashes[1] else (folder / TOKENIZER_NAME, other / name),
        target_vocab_size=target.n_logits,
        threads=threads,
        context=min(context, entry.context),
        fingerprint=fingerprint,
        pair=Pair(hashes, target, entry.config, fingerprint),
        cost=_bits_read(entry) / _bits_read(manifest.target),
    )


def _read_json(path: Path) -> dict[str, object]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(document, dict):
            return document
        reason = f"holds a {type(document).__name__}"
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
    raise BundleError(f"{path} is not a tokenizer ({reason}): copy the bundle again")


def _bits_read(entry: ModelEntry) -> int:
    return max(entry.n_bits(decoder_shapes(entry.config)), 1)
