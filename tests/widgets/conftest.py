"""Text fields without a screen, over toy models."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator

import pytest

os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
widgets = pytest.importorskip("PySide6.QtWidgets", exc_type=ImportError)

from PySide6.QtCore import QEvent  # noqa: E402
from PySide6.QtTest import QTest  # noqa: E402
from PySide6.QtWidgets import QApplication, QWidget  # noqa: E402

from edgedec.autocomplete import AutocompleteConfig  # noqa: E402
from edgedec.runtime.engine.engine import Engine  # noqa: E402
from edgedec.runtime.text.tokenizer import Tokenizer  # noqa: E402
from edgedec.widgets import AutocompleteEdit, Suggester  # noqa: E402

from ..autocomplete.typing_parts import knowing  # noqa: E402
from ..runtime.conftest import backend, make_engine, tokenizer, trained  # noqa: E402

__all__ = ["backend", "make_engine", "tokenizer", "trained"]

TEXT = "The quick brown fox\njumps over the lazy dog.\nThe quick brown fox\n"


PATIENCE_MS = 60_000
"""For what must come about, on a machine that may stand still."""


def until(is_so: Callable[[], object], patience_s: float = PATIENCE_MS / 1000) -> None:
    """Lets the interface go on until something is so."""
    end_s = time.monotonic() + patience_s
    while not is_so():
        has_focus = QApplication.focusWidget() is not None
        assert time.monotonic() < end_s, f"it did not come about; {has_focus=}"
        QTest.qWait(2)


def show(widget: QWidget) -> None:
    """Shows a widget that has the keyboard."""
    widget.show()
    widget.setFocus()
    assert QTest.qWaitForWindowActive(widget, PATIENCE_MS)


def destroy(widget: QWidget) -> None:
    """Destroys a widget here and now, and not when another thread collects garbage."""
    widget.close()
    widget.deleteLater()
    QApplication.sendPostedEvents(None, int(QEvent.Type.DeferredDelete))


@pytest.fixture(autouse=True)
def collect_here() -> Iterator[None]:
    """Has garbage collected in this thread alone: a widget destroyed in another waits for ever.

    What was there before the test is not looked at: with all libraries loaded that takes seconds.
    """
    gc.disable()
    gc.freeze()
    yield
    gc.collect()
    gc.unfreeze()
    gc.enable()


@pytest.fixture(scope="session")
def application() -> QApplication:
    found = QApplication.instance() or QApplication([])
    assert isinstance(found, QApplication)
    return found


@pytest.fixture
def engine(make_engine: Callable[..., Engine], tokenizer: Tokenizer) -> Iterator[Engine]:
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        yield engine


@pytest.fixture
def suggester(application: QApplication, engine: Engine) -> Iterator[Suggester]:
    found = Suggester(engine, AutocompleteConfig(max_idle_cpu=0.0))
    yield found
    found.close()


@pytest.fixture
def edit(suggester: Suggester) -> Iterator[AutocompleteEdit]:
    found = AutocompleteEdit(suggester)
    show(found)
    yield found
    destroy(found)
