"""The texts that `edgedec train` and `tune` learn from."""

from __future__ import annotations

from pathlib import Path

from edgedec.training.features.corpus import corpus_files, corpus_key


def test_files_whose_names_are_no_text(tmp_path: Path) -> None:
    for name in ("a.txt", "\udcff.txt", ".hidden"):
        (tmp_path / name).write_text("some text")
    assert {path.name for path in corpus_files([tmp_path])} == {"a.txt", "\udcff.txt"}
    assert corpus_key([tmp_path]) == corpus_key([tmp_path])
