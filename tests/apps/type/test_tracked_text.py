"""The text around the cursor, when applications report it late, never, or otherwise."""

from __future__ import annotations

import pytest

from edgedec.apps.type.tracked_text import TrackedText


@pytest.fixture
def text() -> TrackedText:
    found = TrackedText()
    found.report("one two", 3, 0.0)
    return found


def state(text: TrackedText) -> tuple[str, str]:
    return text.before, text.after


def test_keys_without_reports() -> None:
    text = TrackedText()
    for character in "abc":
        text.type(character, 0.0)
    text.erase(0.0)
    assert state(text) == ("ab", "")


def test_report_that_lacks_the_latest_keys_is_stale(text: TrackedText) -> None:
    text.type("s", 1.0)
    text.type("!", 1.1)
    assert not text.report("one two", 3, 1.2)
    assert not text.report("ones two", 4, 1.3)
    assert state(text) == ("ones!", " two")


def test_report_is_right_in_the_end(text: TrackedText) -> None:
    text.type("s", 1.0)  # which the application ignores
    assert text.report("one two", 3, 4.0)
    assert state(text) == ("one", " two")


def test_reports_far_behind_a_fast_typist() -> None:
    text, typed = TrackedText(), "The capital of France is Paris."
    for i, character in enumerate(typed):
        text.type(character, i / 20)
    for n in range(1, len(typed) + 1):
        assert not text.report(typed[:n], n, 2 + n / 100)
    assert state(text) == (typed, "")


def test_a_cursor_that_is_older_than_its_text_is_stale() -> None:
    text, typed = TrackedText(), "The capital"
    for i, character in enumerate(typed):
        text.type(character, i / 20)
    assert not text.report("The", 2, 0.6)  # as Firefox did on a busy machine
    assert not text.report("The", 3, 0.6)
    assert not text.report(typed, 10, 0.6)
    assert state(text) == (typed, "")


def test_other_text_replaces_the_copy_at_once(text: TrackedText) -> None:
    text.type("s", 1.0)
    assert text.report("something else", 4, 1.0)
    assert state(text) == ("some", "thing else")


def test_cursor_elsewhere(text: TrackedText) -> None:
    text.lose()
    assert state(text) == ("", "")
