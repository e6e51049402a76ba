"""What waits for a draft model to be opened, and which models a saved session fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.models.manifest import fingerprint_of, read_manifest
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.session_memory import (
    DRAFT,
    TARGET,
    KnownModel,
    SessionMemory,
)
from edgedec.runtime.sequences.state import KVRows

from ..conftest import ToyCache, ToyModel, toy_state

pytestmark = pytest.mark.slow

VOCAB, CONTEXT = 330, 256
A, B = list(range(40)), list(range(100, 180))


class OtherModel(ToyModel):
    """A model whose KV cache is of another format."""

    def new_state(self, context: int) -> ToyCache:
        return OtherCache(self)


class OtherCache(ToyCache):
    """Rows under another name."""

    def snapshot(self, start: int, stop: int) -> KVRows:
        return {"other": super().snapshot(start, stop)["rows"]}


def both(make_source: Any) -> SessionMemory:
    config = make_source(vocab_size=VOCAB).config
    memory = SessionMemory(10**6)
    memory.know(TARGET, KnownModel("tiny", config, CONTEXT))
    memory.know(DRAFT, KnownModel("tinier", config, CONTEXT))
    return memory


def opened(
    memory: SessionMemory, role: str, tokens: Sequence[int] = (), model: ToyModel | None = None
) -> SequencePool:
    """Returns the pool of a model of ``role``, where something computed ``tokens`` if any."""
    pool = memory.open(role, model or ToyModel(VOCAB), CONTEXT)
    if tokens:
        pool.take_idle().restore(toy_state(tokens, 0))
    return pool


def test_draft_state_waits_for_its_model(make_source: Any, tmp_path: Path) -> None:
    """Draft models are opened by the first request that drafts, long after a file is loaded."""
    memory = both(make_source)
    opened(memory, TARGET, A)
    opened(memory, DRAFT, B)
    memory.save(tmp_path / "ab")
    memory = both(make_source)
    target = opened(memory, TARGET)
    assert memory.load(tmp_path / "ab") == 40
    assert list(target.latest.tokens) == A
    memory.save(tmp_path / "again")  # what waits is saved as well
    assert (tmp_path / "again").read_bytes() == (tmp_path / "ab").read_bytes()
    draft = opened(memory, DRAFT)
    assert list(draft.latest.tokens) == B
    another = opened(memory, DRAFT)
    assert another.latest.n_tokens == 0
    another.close()
    another.model.close()
    memory.load(tmp_path / "ab")
    assert list(opened(memory, DRAFT).latest.tokens) == B


def test_draft_state_of_another_kv_format_is_dropped(make_source: Any, tmp_path: Path) -> None:
    memory = both(make_source)
    opened(memory, TARGET, A)
    opened(memory, DRAFT, B)
    memory.save(tmp_path / "ab")
    memory = both(make_source)
    opened(memory, TARGET)
    memory.load(tmp_path / "ab")
    draft = opened(memory, DRAFT, model=OtherModel(VOCAB))
    assert draft.latest.n_tokens == 0


def test_a_file_without_draft_leaves_the_draft(make_source: Any, tmp_path: Path) -> None:
    memory = both(make_source)
    opened(memory, TARGET, A)
    memory.save(tmp_path / "a")
    draft = opened(memory, DRAFT, B)
    memory.load(tmp_path / "a")
    assert list(draft.latest.tokens) == B


def test_fingerprint_names_what_computes_rows(smollm2_bundle: Path) -> None:
    manifest = read_manifest(smollm2_bundle)
    name = fingerprint_of(manifest, TARGET)
    entry = manifest.models[TARGET]
    for path in entry.files:
        files = dict(manifest.files)
        files[path] = dataclasses.replace(files[path], sha256="0" * 64)
        assert fingerprint_of(dataclasses.replace(manifest, files=files), TARGET) != name
    config = dataclasses.replace(entry.config, rope_theta=1.5)
    other = dataclasses.replace(
        manifest, models={TARGET: dataclasses.replace(entry, config=config)}
    )
    assert fingerprint_of(other, TARGET) != name
    renamed = dataclasses.replace(manifest, name="another", defaults={"a": 1})
    assert fingerprint_of(renamed, TARGET) == name
