"""The model manager, over a library of the test's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import application, until  # first: it skips where there is no PySide6

from PySide6.QtWidgets import QApplication  # isort: skip

from edgedec.apps.desktop.models_dialog import ModelsDialog
from edgedec.apps.model_names import open_library

__all__ = ["application"]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, smollm2_gguf: Path) -> Path:
    """A cache with one pulled model, `some/model`, that can be exported."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    records = tmp_path / "edgedec" / "models"
    records.mkdir(parents=True)
    record = {
        "name": "some/model",
        "source": str(smollm2_gguf),
        "revision": "0" * 40,
        "licence": "apache-2.0",
        "n_bytes": smollm2_gguf.stat().st_size,
    }
    (records / "some--model.json").write_text(json.dumps(record))
    return tmp_path


def select(dialog: ModelsDialog, name: str) -> None:
    rows = [dialog.list.topLevelItem(i) for i in range(dialog.list.topLevelItemCount())]
    (row,) = [row for row in rows if row is not None and row.text(0) == name]
    dialog.list.setCurrentItem(row)


def names(dialog: ModelsDialog) -> list[str]:
    rows = [dialog.list.topLevelItem(i) for i in range(dialog.list.topLevelItemCount())]
    return [row.text(0) for row in rows if row is not None]


@pytest.mark.slow
def test_a_model_is_exported_and_used(application: QApplication, library: Path) -> None:
    dialog, chosen = ModelsDialog(), []
    dialog.chosen.connect(chosen.append)
    until(lambda: "some/model" in names(dialog), 300)
    select(dialog, "some/model")
    bundle = str(open_library().bundle("some/model"))
    dialog.export.click()
    assert dialog.cancel.isEnabled()
    until(lambda: dialog.bar.maximum() == 1000 and dialog.bar.value() > 0, 300)
    dialog.cancel.click()
    until(lambda: not dialog.cancel.isEnabled(), 300)
    assert "cancelled" in dialog.told.text()
    assert not Path(bundle).exists()
    select(dialog, "some/model")
    dialog.export.click()
    until(lambda: bundle in names(dialog), 300)
    assert dialog.told.text() == "done"
    select(dialog, bundle)
    dialog.use.click()
    assert chosen == [bundle]
    dialog.close_jobs()


def test_a_double_click_uses_a_bundle(application: QApplication, library: Path) -> None:
    dialog, chosen = ModelsDialog(), []
    dialog.chosen.connect(chosen.append)
    until(lambda: "some/model" in names(dialog), 300)
    dialog._add("bundle", "/some/own.edgedec", "format 1", 1, "own")
    for name in ("some/model", "/some/own.edgedec"):
        select(dialog, name)
        dialog.list.itemDoubleClicked.emit(dialog.list.currentItem(), 0)
    assert chosen == ["/some/own.edgedec"]  # a model has to be exported first
    dialog.close_jobs()


def test_what_cannot_be_pulled_is_told(
    application: QApplication, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(library))
    dialog = ModelsDialog()
    dialog.hub_name.setText("no model at all")
    dialog.pull.click()
    until(lambda: not dialog.cancel.isEnabled(), 300)
    assert "expected a hub id" in dialog.told.text()
    dialog.begin("pull", "some/other")
    dialog.close_jobs()  # in the middle of it
