"""What suggestions keep between two starts: nothing, unless somebody says where."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import cast

import pytest

from edgedec.apps.typing.typing_memory import N_SESSIONS, SESSION_BYTES, TypingMemory, share_of
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions

OTHER_TEXT = (
    "Some people read books in the evening, others listen to music, and then there are those who"
)
TEXT = "The sun rises in the east and sets in the west. The moon rises in the east, too, and"


@pytest.mark.e2e
def test_the_next_start_knows_what_was_read_of_each_document(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    memory = TypingMemory(str(tmp_path / "learned"), str(tmp_path / "sessions"))
    config = AutocompleteConfig(max_idle_cpu=0.0, max_new_tokens=4, n_others=0)
    texts = {"a.txt": TEXT, "b.txt": OTHER_TEXT}
    n_read = []
    for _ in range(2):
        usual = EngineOptions(context=512)
        with load(smollm2_bundle, memory.options(smollm2_bundle, usual)) as engine:
            memory.recall(engine, smollm2_bundle)
            with Autocompleter(engine, config, learned=memory.learned()) as completer:
                for name, text in texts.items():
                    before = completer.counts.n_prompt - completer.counts.n_reused
                    completer.update(Document(text, len(text), name)).result(timeout=60)
                    n_read.append(completer.counts.n_prompt - completer.counts.n_reused - before)
            memory.keep(engine, smollm2_bundle, completer.prompts)
    assert min(n_read[:2]) > 10
    assert max(n_read[2:]) <= 1
    files = list((tmp_path / "sessions").iterdir())
    for path in (*files, *(tmp_path / "learned").iterdir()):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "sessions").stat().st_mode) == 0o700
    assert len(list((tmp_path / "learned").iterdir())) == len(files) == 2
    files[0].write_bytes(b"nonsense")
    with load(smollm2_bundle) as engine:
        with pytest.raises(SessionError, match=files[0].name):
            memory.recall(engine, smollm2_bundle)
        memory.recall(engine, smollm2_bundle)
    assert list((tmp_path / "sessions").iterdir()) == files[1:]


class Writing:
    """An engine that writes files of a size."""

    def __init__(self, n_bytes: int) -> None:
        self._n_bytes = n_bytes

    def save_session(self, path: Path, prompt: list[int]) -> None:
        with path.open("wb") as file:
            file.truncate(self._n_bytes)


@pytest.mark.parametrize(("n_bytes", "n_kept"), [(100, N_SESSIONS), (SESSION_BYTES // 3, 3)])
def test_few_documents_and_bytes_are_kept(tmp_path: Path, n_bytes: int, n_kept: int) -> None:
    memory = TypingMemory("", str(tmp_path / "sessions"))
    for i in range(2 * N_SESSIONS):
        engine = cast("Engine", Writing(n_bytes))
        memory.keep(engine, tmp_path / f"{i % 2}.edgedec", {f"{i}.txt": [1]})
    assert len(list((tmp_path / "sessions").iterdir())) == n_kept
    (tmp_path / "file").touch()
    with pytest.raises(SessionError, match="cannot keep sessions in"):
        TypingMemory("", str(tmp_path / "file")).keep(engine, tmp_path, {"a": [1]})


def test_a_file_that_another_program_removes_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "sessions"
    folder.mkdir()
    (folder / "0-0.session").symlink_to("nowhere")
    engine = cast("Engine", Writing(100))
    TypingMemory("", str(folder)).keep(engine, tmp_path, {"a": [1], "b": [2]})
    assert len(list(folder.iterdir())) == 3


def test_nothing_is_kept_unasked(tmp_path: Path) -> None:
    usual = EngineOptions()
    assert TypingMemory().options(tmp_path, usual) is usual
    assert TypingMemory().learned() is None


def test_shares() -> None:
    assert [share_of(text) for text in ("0", "30%", "0.3", "100 %")] == [0, 0.3, 0.3, 1]
    for text in ("", "a", "30", "-1%", "nan"):
        with pytest.raises(ConfigError, match="expected 0 to 1, or 0% to 100%"):
            share_of(text)
