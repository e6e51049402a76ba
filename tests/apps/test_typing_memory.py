"""What suggestions keep between two starts: nothing, unless somebody says where."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from edgedec.apps.typing_memory import TypingMemory, share_of
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

TEXT = "The sun rises in the east and sets in the west. The moon rises in the east, too, and"


@pytest.mark.e2e
def test_the_next_start_knows_what_was_read(smollm2_bundle: Path, tmp_path: Path) -> None:
    memory = TypingMemory(str(tmp_path / "learned"), str(tmp_path / "session"))
    n_read = []
    for _ in range(2):
        usual = EngineOptions(context=512)
        with load(smollm2_bundle, memory.options(smollm2_bundle, usual)) as engine:
            memory.recall(engine)
            config = AutocompleteConfig(max_idle_cpu=0.0, max_new_tokens=4)
            with Autocompleter(engine, config, learned=memory.learned()) as completer:
                completer.update(Document(TEXT, len(TEXT))).result(timeout=60)
            n_read.append(completer.counts.n_prompt - completer.counts.n_reused)
            memory.keep(engine)
    assert n_read[0] > 10
    assert n_read[1] <= 1
    for path in (tmp_path / "session", *(tmp_path / "learned").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(list((tmp_path / "learned").iterdir())) == 2
    (tmp_path / "session").write_bytes(b"nonsense")
    with load(smollm2_bundle) as engine, pytest.raises(SessionError):
        memory.recall(engine)


def test_nothing_is_kept_unasked(tmp_path: Path) -> None:
    usual = EngineOptions()
    assert TypingMemory().options(tmp_path, usual) is usual
    assert TypingMemory().learned() is None


def test_shares() -> None:
    assert [share_of(text) for text in ("0", "30%", "0.3", "100 %")] == [0, 0.3, 0.3, 1]
    for text in ("", "a", "30", "-1%", "nan"):
        with pytest.raises(ConfigError, match="expected 0 to 1, or 0% to 100%"):
            share_of(text)
