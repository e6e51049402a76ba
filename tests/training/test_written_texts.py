"""Texts that a model wrote elsewhere, and what trainings read of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.models.errors import ConfigError
from edgedec.models.manifest import fingerprint_of, read_manifest
from edgedec.training.features.feature_file import SELF
from edgedec.training.features.reading import features_of
from edgedec.training.features.written_texts import WrittenTexts, enough_of, read_written
from edgedec.training.options import Clock, TrainingOptions

TEXTS = [[1, 4093, 198, 28], [1, 9690, 198, 2683, 253], [1, 504]]


def written(tmp_path: Path, fingerprint: str = "f") -> Path:
    path = tmp_path / "texts.jsonl"
    WrittenTexts(fingerprint, 0.7, TEXTS).write(path)
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_written(written(tmp_path), "f", 49152) == WrittenTexts("f", 0.7, TEXTS)


def test_other_texts_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    with pytest.raises(ConfigError, match="was written by another model"):
        read_written(path, "g", 49152)
    with pytest.raises(ConfigError, match="no list of this model's tokens"):
        read_written(path, "f", 9000)
    for broken in ("", "{}", "[1]\n[2]", "[" * 10_000, '{"model": "f", "temperature": 1}\n"a"'):
        path.write_text(broken)
        with pytest.raises(ConfigError, match="expected a file that `edgedec fleet write` made"):
            read_written(path, "f", 49152)
    with pytest.raises(ConfigError, match="cannot read"):
        read_written(tmp_path / "missing", "f", 49152)


def test_no_more_texts_than_are_wanted() -> None:
    assert enough_of(TEXTS, 4) == TEXTS[:1]
    assert enough_of(TEXTS, 5) == TEXTS[:2]
    assert enough_of(TEXTS, 100) == TEXTS
    assert enough_of(iter(TEXTS), 0) == []


def test_a_text_is_written_once() -> None:
    with pytest.raises(ConfigError, match="leave out --self and --prompts"):
        TrainingOptions(written=Path("a"), n_self=5).check()


@pytest.mark.e2e
def test_trainings_read_them_in_place_of_writing(smollm2_bundle: Path, tmp_path: Path) -> None:
    manifest = read_manifest(smollm2_bundle)
    path = written(tmp_path, fingerprint_of(manifest, manifest.target_name))
    options = TrainingOptions(written=path)
    options.check()
    with features_of(
        smollm2_bundle, manifest, options, tmp_path / "out", lambda *_: None,
        Clock(None, lambda: False),
    ) as (file, _):  # fmt: skip
        assert [text.tokens.tolist() for text in file.texts()] == TEXTS
        assert {text.kind for text in file.texts()} == {SELF}
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], json.dumps(TEXTS[2])]))
    with features_of(
        smollm2_bundle, manifest, options, tmp_path / "out", lambda *_: None,
        Clock(None, lambda: False),
    ) as (file, _):  # fmt: skip
        assert [text.tokens.tolist() for text in file.texts()] == [TEXTS[0], TEXTS[2]]
