"""Getting a model: the list, the jobs, the dialog and the welcome page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import application, until  # first: it skips where there is no PySide6

from PySide6.QtCore import Qt  # isort: skip
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QFileDialog, QToolButton

from edgedec.apps.desktop.model_chooser import ModelChooser
from edgedec.apps.desktop.model_jobs import ModelJobs
from edgedec.apps.desktop.model_list import ModelList, rows_of, suggested
from edgedec.apps.desktop.models_dialog import ModelsDialog
from edgedec.apps.desktop.settings import EditorSettings
from edgedec.apps.desktop.window import EditorWindow
from edgedec.apps.model_names import open_library

__all__ = ["application"]

_MODEL = {"from": "hub", "licence": "mit", "n_bytes": 10**9, "for": "texts", "fits": True}
TABLE = {
    "models": [
        {**_MODEL, "name": "qwen2.5-coder-1.5b-instruct", "state": "needs 9 GB RAM", "fits": False},
        {**_MODEL, "name": "smollm2-135m-instruct", "state": "here"},
        {**_MODEL, "name": "qwen3-4b", "state": "to fetch"},
        {
            **_MODEL,
            "name": "qwen2.5-coder-0.5b-instruct",
            "state": "to fetch",
            "suggested_for": "code",
        },
        {"name": "some/model", "state": "pulled", "n_bytes": 7, "for": "", "from": "hub"},
    ],
    "bundles": [
        {"path": "/c/qwen3-4b.edgedec", "model": "Qwen3", "n_bytes": 5, "format": "keep, cpu"},
        {"path": "/c/bad.edgedec", "model": "broken: no manifest", "n_bytes": 0, "format": ""},
    ],
}


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


def keys(chooser: ModelChooser) -> list[str]:
    return [row.key for row in chooser.list.rows]


def test_models_are_listed_by_what_can_be_done_with_them() -> None:
    rows = rows_of(TABLE)
    assert [(row.group.split()[0], row.name, row.state) for row in rows] == [
        ("Ready", "qwen3-4b", "ready"),
        ("Ready", "bad", "broken"),
        ("Fit", "qwen2.5-coder-0.5b-instruct", "to download"),
        ("Fit", "smollm2-135m-instruct", "downloaded"),
        ("Fit", "some/model", "downloaded"),
        ("Too", "qwen2.5-coder-1.5b-instruct", "needs 9 GB RAM"),
    ]
    assert rows[0].purpose == "texts"
    best = suggested(rows)
    assert best is not None
    assert best.name == "qwen2.5-coder-0.5b-instruct"  # as `edgedec models list` says
    assert suggested([]) is None


def test_the_suggested_model_is_selected_until_another_is(application: QApplication) -> None:
    shown = ModelList(has_large=False)
    shown.show_rows(rows_of(TABLE))
    assert [row.name for row in shown.rows if row.group.startswith("Too")] == []
    row = shown.selected()
    assert row is not None
    assert row.name == "qwen2.5-coder-0.5b-instruct"
    assert shown.select("some/model")
    shown.show_rows(rows_of(TABLE))
    row = shown.selected()
    assert row is not None
    assert row.key == "some/model"
    assert not ModelList(has_large=True).select("none")


def test_another_bundle_ends_an_old_error(
    application: QApplication, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = ModelJobs()
    chooser, chosen = ModelChooser(jobs, has_large=True), list[str]()
    chooser.chosen.connect(chosen.append)
    monkeypatch.setattr(QFileDialog, "getExistingDirectory", lambda *_: str(tmp_path))
    jobs.ended.emit("no such model")
    assert chooser.status.text() == "no such model"
    chooser.folder.click()
    assert (chosen, chooser.status.text()) == ([str(tmp_path)], "")
    jobs.ended.emit("no such model")
    chooser.list.show_rows(rows_of(TABLE))
    chooser.list.select("/c/qwen3-4b.edgedec")
    chooser.use.click()
    assert (chosen[1:], chooser.status.text()) == (["/c/qwen3-4b.edgedec"], "")
    jobs.close()


@pytest.mark.slow
def test_one_button_leads_from_a_model_to_its_use(application: QApplication, library: Path) -> None:
    jobs = ModelJobs()
    chooser, made = ModelChooser(jobs, has_large=True), list[str]()
    jobs.made.connect(made.append)
    jobs.refresh()
    until(lambda: "some/model" in keys(chooser), 300)
    chooser.list.select("some/model")
    assert chooser.use.text() == "Get and use"
    bundle = str(open_library().bundle("some/model"))
    chooser.use.click()
    assert not chooser.use.isEnabled()
    until(lambda: chooser.bar.maximum() == 1000 and chooser.bar.value() > 0, 300)
    chooser.cancel.click()
    until(lambda: not jobs.is_busy, 300)
    assert "Cancelled" in chooser.status.text()
    assert not Path(bundle).exists()
    chooser.list.select("some/model")
    chooser.use.click()
    until(lambda: made == [bundle], 300)
    assert chooser.status.text() == "model is ready."
    until(lambda: bundle in keys(chooser), 300)
    assert "some/model" not in keys(chooser)
    chosen: list[str] = []
    chooser.chosen.connect(chosen.append)
    chooser.list.select(bundle)
    assert chooser.use.text() == "Use"
    chooser.use.click()
    chooser.list.itemActivated.emit(chooser.list.currentItem(), 0)  # a double click, or Return
    assert chosen == [bundle, bundle]
    jobs.close()


@pytest.mark.slow
def test_a_model_file_is_opened_and_used(
    open_window: Callable[..., EditorWindow],
    library: Path,
    smollm2_gguf: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    window = open_window()
    assert window.strip.state.text() == "No model: get one"
    window.strip.state.click()
    page = window.welcome()
    assert window.tabs.currentWidget() is page
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *given: (str(smollm2_gguf), ""))
    page.chooser.gguf.click()
    until(lambda: window.settings.bundle.endswith(".edgedec"), 300)
    until(lambda: window.strip.state.text() == "Suggestions on", 300)
    window.strip.state.click()
    assert window.strip.state.text() == "Suggestions off"
    assert window.suggester.is_paused


def test_what_cannot_be_got_is_reported(
    application: QApplication, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(library))
    jobs = ModelJobs()
    dialog = ModelsDialog(jobs)
    assert not dialog.get.isEnabled()
    dialog.hub_name.setText("no model at all")
    dialog.get.click()
    assert not dialog.get.isEnabled()
    until(lambda: not jobs.is_busy, 300)
    assert "expected a hub id" in dialog.chooser.status.text()
    jobs.get("some/other")
    jobs.close()  # in the middle of it


def test_the_welcome_page_begins_to_write(
    open_window: Callable[..., EditorWindow], library: Path, tmp_path: Path
) -> None:
    path = tmp_path / "recent.txt"
    path.write_text("recently")
    window = open_window(EditorSettings(recent=(str(path),)))
    page = window.welcome()
    assert window.welcome() is page
    assert window.current is None
    links = {link.text().split("   ")[0]: link for link in page.findChildren(QToolButton)}
    assert list(links) == ["New file", "Open a file…", "Open a folder…", "recent.txt"]
    QTest.mouseClick(links["recent.txt"], Qt.MouseButton.LeftButton)
    assert window.current is not None
    assert window.current.toPlainText() == "recently"
    links["New file"].click()
    assert len(window.documents) == 3
    window.tabs.setCurrentWidget(page)
    window._close_page(page)
    assert window.tabs.count() == 3
