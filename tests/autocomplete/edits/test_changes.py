"""What was changed of late, and where a rewritten window differs."""

from __future__ import annotations

import difflib

import numpy as np
import pytest

from edgedec.autocomplete import Document
from edgedec.autocomplete.edits.changes import EditHistory
from edgedec.autocomplete.edits.edit_prompt import patch
from edgedec.autocomplete.edits.hunks import Hunk, first_hunk
from edgedec.autocomplete.edits.window import likely_lines, removed_names, window_at

CODE = "".join(f"line {i}\n" for i in range(40))


def states(*texts: str) -> EditHistory:
    history = EditHistory()
    for text in texts:
        history.see(Document(text, 0, "a.py"))
    return history


def test_keys_of_one_word_are_one_change() -> None:
    texts = ["x = 1\ny = 2\n", "x = 1\nyy = 2\n", "x = 1\nyyy = 2\n"]
    (change,) = states(*texts).changes
    assert (change.line, change.before, change.after) == (1, ("y = 2",), ("yyy = 2",))
    assert patch(change, 3) == "@@ -1,2 +1,2 @@\n x = 1\n-y = 2\n+yyy = 2\n"


def test_what_was_taken_back_is_no_change() -> None:
    assert states("a\nb\n", "a\nbc\n", "a\nb\n").changes == []


def test_edits_far_apart_are_changes_of_their_own_in_their_order() -> None:
    one = CODE.replace("line 3\n", "LINE 3\n")
    two = one.replace("line 30\n", "line 30\nnew\n")
    first, second = states(CODE, one, two).changes
    assert (first.line, first.after) == (3, ("LINE 3",))
    assert (second.line, second.before, second.after) == (31, (), ("new",))


def test_edits_of_two_documents_are_told_apart() -> None:
    history = EditHistory()
    for name, text in (("a", "1\n"), ("b", "1\n"), ("a", "2\n"), ("b", "3\n"), ("a", "4\n")):
        history.see(Document(text, 0, name))
    found = [(change.name, change.after) for change in history.changes]
    assert found == [("a", ("2",)), ("b", ("3",)), ("a", ("4",))]
    history.forget("a")
    assert [change.name for change in history.changes] == ["a", "b", "a"]


@pytest.mark.parametrize("seed", range(20))
def test_changes_turn_the_first_state_into_the_last(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines = [f"line {i}" for i in range(30)]
    history = states("\n".join(lines) + "\n")
    first = list(lines)
    for i in range(6):
        at = int(rng.integers(len(lines)))
        n_out, n_in = rng.integers(0, 3, 2)
        lines[at : at + n_out] = [f"new {i} {j}" for j in range(n_in)]
        history.see(Document("".join(f"{line}\n" for line in lines), 0, "a.py"))
    for change in history.changes:
        at = change.line
        assert tuple(first[at : at + len(change.before)]) == change.before
        first[at : at + len(change.before)] = change.after
    assert first == lines


OLD = ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("new", "hunk"),
    [
        (["a", "B", "c"], None),
        (["a", "B", "c", "d"], Hunk(1, 2, 1, 2)),
        (["a", "b", "x", "y", "c", "d"], Hunk(2, 2, 2, 4)),
        (["a", "d", "e"], Hunk(1, 3, 1, 1)),
        (["A", "B", "C", "d", "e"], Hunk(0, 3, 0, 3)),
        (["a", "b", "c", "d"], None),
    ],
)
def test_a_change_is_known_once_two_lines_agree(new: list[str], hunk: Hunk | None) -> None:
    assert first_hunk(OLD, new, False) == hunk


@pytest.mark.parametrize("seed", range(30))
def test_a_whole_answer_s_change_is_that_of_difflib(seed: int) -> None:
    """One edit in the midst; the standard library's word on where it is."""
    rng = np.random.default_rng(seed)
    old = [f"line {i}" for i in range(20)]
    at, n_out, n_in = (int(n) for n in rng.integers([2, 0, 0], [14, 4, 4]))
    new = [*old[:at], *(f"new {j}" for j in range(n_in)), *old[at + n_out :]]
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    changed = [code[1:] for code in matcher.get_opcodes() if code[0] != "equal"]
    found = first_hunk(old, new, True)
    assert [(h.start, h.old_end, h.start, h.new_end) for h in [found] if h] == changed
    assert found == first_hunk(old, new[: at + n_in + 2], False)


def test_the_window_is_around_the_line_and_ends_with_the_document() -> None:
    document = Document(CODE, CODE.index("line 20"), "a.py")
    window = window_at(document, 20, 5, 2, 1)
    assert window.lines == tuple(f"line {i}" for i in range(19, 24))
    assert (window.above, window.below) == ("line 17\nline 18\n", "line 24\nline 25\n")
    assert window.cursor == len("line 19\n")
    assert window_at(document, 39, 5, 2, 1).lines == ("line 38", "line 39")
    assert window_at(document, 39, 5, 2, 1).cursor is None
    assert window_at(Document("", 0, ""), 0, 5, 2, 1).text == "\n"
    crlf = window_at(Document("a\r\nb\r\n", 3, ""), 1, 1, 9, 0)
    assert (crlf.text, crlf.above, crlf.start) == ("b\n", "a\n", 3)


def test_lines_with_a_name_that_is_gone_are_likely() -> None:
    history = states("width = 1\n" + CODE + "area = width\n", "w = 1\n" + CODE + "area = width\n")
    (change,) = history.changes
    assert removed_names(change) == {"width"}
    document = Document("w = 1\n" + CODE + "area = width\n", 0, "a.py")
    assert likely_lines(document, [change], [7, 999]) == [7, 41]
