"""What waits for a draft model's session, and which models a saved session fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.sessions.memory import (
    DRAFT,
    TARGET,
    KnownModel,
    SessionMemory,
    fingerprint_of,
)
from edgedec.runtime.sessions.state import SessionState

from ..conftest import ToySession, toy_state

VOCAB = 330
A, B = list(range(40)), list(range(100, 180))


def both(make_source: Any) -> SessionMemory:
    config = make_source(vocab_size=VOCAB).config
    memory = SessionMemory(10**6)
    memory.know(TARGET, KnownModel("tiny", config, 256))
    memory.know(DRAFT, KnownModel("tinier", config, 256))
    return memory


def computed(tokens: Sequence[int]) -> ToySession:
    session = ToySession(VOCAB)
    session.restore(toy_state(tokens, 0))
    return session


def test_draft_state_waits_for_its_session(make_source: Any, tmp_path: Path) -> None:
    """Draft models are opened by the first request that drafts, long after a file is loaded."""
    memory = both(make_source)
    memory.open(TARGET, computed(A))
    memory.open(DRAFT, computed(B))
    memory.save(tmp_path / "ab")
    memory = both(make_source)
    memory.open(TARGET, target := ToySession(VOCAB))
    assert memory.load(tmp_path / "ab") == 40
    assert list(target.tokens) == A
    memory.save(tmp_path / "again")  # what waits is saved as well
    assert (tmp_path / "again").read_bytes() == (tmp_path / "ab").read_bytes()
    memory.open(DRAFT, draft := ToySession(VOCAB))
    assert list(draft.tokens) == B
    memory.open(DRAFT, another := ToySession(VOCAB))
    assert another.n_tokens == 0
    another.close()
    memory.load(tmp_path / "ab")
    memory.open(DRAFT, third := ToySession(VOCAB))
    assert list(third.tokens) == B


def test_draft_state_of_another_kv_format_is_dropped(make_source: Any, tmp_path: Path) -> None:
    memory = both(make_source)
    memory.open(TARGET, computed(A))
    memory.open(DRAFT, computed(B))
    memory.save(tmp_path / "ab")
    memory = both(make_source)
    memory.open(TARGET, ToySession(VOCAB))
    memory.load(tmp_path / "ab")

    class Narrow(ToySession):
        def snapshot(self, n_tokens: int | None = None, start: int = 0) -> SessionState:
            state = super().snapshot(n_tokens, start)
            return SessionState(state.tokens, start, {"other": state.kv_rows["rows"]})

    memory.open(DRAFT, draft := Narrow(VOCAB))
    assert draft.n_tokens == 0


def test_a_file_without_draft_leaves_the_draft(make_source: Any, tmp_path: Path) -> None:
    memory = both(make_source)
    memory.open(TARGET, computed(A))
    memory.save(tmp_path / "a")
    memory.open(DRAFT, draft := computed(B))
    memory.load(tmp_path / "a")
    assert list(draft.tokens) == B


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


@pytest.mark.parametrize("size", [-1, 1.5, True, "256"])
def test_bad_sizes(size: Any) -> None:
    with pytest.raises(ConfigError, match="prompt_cache_mb is"):
        SessionMemory.of_mb(size)
