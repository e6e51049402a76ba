"""What is no document, number or name is refused where it is given, and ends no autocompleter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, LearnedOffers
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine

from ..runtime.test_entry_types import ODD, refused
from .typing_parts import at, offered

pytestmark = pytest.mark.robustness

NO_TEXT = [value for value in [*ODD, None, 5] if not isinstance(value, str)]


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(AutocompleteConfig)])
def test_config(field: str) -> None:
    for value in ODD:
        if isinstance(value, str) and field == "method":
            continue
        assert field in refused(lambda value=value: AutocompleteConfig(**{field: value}))


@pytest.mark.parametrize("value", [True, 16.5, "16"])
def test_numbers_of_another_type(value: Any) -> None:
    assert "n_before" in refused(lambda: AutocompleteConfig(n_before=value))


@pytest.mark.parametrize("value", NO_TEXT)
def test_documents(value: Any) -> None:
    assert "text of a document" in refused(lambda: Document(value, 0))
    assert "name of a document" in refused(lambda: Document("ab", 0, value))


@pytest.mark.parametrize("value", [*ODD, None, -1, 0.5, True, "1"])
def test_places(value: Any) -> None:
    assert "cursor of a document" in refused(lambda: Document("ab", value))
    assert "offset of a document" in refused(lambda: Document("ab", 0, "", value))


@pytest.mark.parametrize("value", [*ODD, 5, False, ""])
def test_parts_of_an_autocompleter(engine: Engine, value: Any) -> None:
    calls: dict[str, Callable[[], object]] = {
        "engine": lambda: Autocompleter(value),
        "config": lambda: Autocompleter(engine, value),
        "learned": lambda: Autocompleter(engine, learned=value),
    }
    if value is not len:
        calls["on_offer"] = lambda: Autocompleter(engine, on_offer=value)
    for name, call in calls.items():
        assert f"{name} is" in refused(call)
    assert "file of learned offers" in refused(lambda: LearnedOffers(value))


def test_it_goes_on_whatever_it_was_asked(engine: Engine) -> None:
    with Autocompleter(engine) as completer:
        asked: Any = completer
        for value in [*ODD, None, 5]:
            assert "document is" in refused(lambda value=value: asked.update(value))
            assert "document is" in refused(lambda value=value: asked.see(value))
            if not isinstance(value, str):
                assert "name of a document" in refused(lambda value=value: asked.forget(value))
        for value in [*ODD, None, 0, -1, 9, 2.5, True, "4"]:
            with pytest.raises(ConfigError, match="k is"):
                asked.alternatives(value)
        assert offered(completer.update(at(4)))
