"""Limits of lines, by llama-server's rules for `t_max_predict_ms` and `n_indent`."""

from __future__ import annotations

import pytest

from edgedec.apps.serve.core import LineLimits
from edgedec.apps.serve.parsing import LineWatch


def written(limits: LineLimits, pieces: list[tuple[float, str]]) -> tuple[str, bool]:
    """Returns what is left of a text, and whether it ended. pieces: with seconds of a clock."""
    now_s = [0.0]
    watch, text = LineWatch(limits, lambda: now_s[0]), ""
    for now_s[0], piece in pieces:
        text += watch.push(piece)
        if watch.is_over:
            break
    return text, watch.is_over


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([(0, "a"), (9, "b"), (99, "c")], ("abc", False)),  # no line is complete yet
        ([(0, "a"), (0.5, "\n"), (0.9, "b"), (1.1, "c"), (1.2, "d")], ("a\nbc", True)),
        ([(0, "a"), (0.5, "\n"), (1.0, "b")], ("a\nb", False)),
        ([(5, "a"), (5.9, "\n"), (6.0, "b")], ("a\nb", False)),  # from the first text on
        ([(5, "a"), (7, "\nb"), (8, "c")], ("a\nb", True)),
    ],
)
def test_time_ends_a_text_once_a_line_is_complete(
    pieces: list[tuple[float, str]], expected: tuple[str, bool]
) -> None:
    assert written(LineLimits(predict_ms=1000), pieces) == expected
    assert written(LineLimits(), pieces) == ("".join(piece for _, piece in pieces), False)


@pytest.mark.parametrize("n_per_piece", [1, 2, 3, 100])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\n    b\n    c\nd", "a\n    b\n    c\n"),
        ("a\n    b\n  c\n    d", "a\n    b\n  "),  # the line's blanks stay, as in llama.cpp
        ("a\n    b\n\n    c", "a\n    b\n"),
        ("a\n\t\t \tb", "a\n\t\t \tb"),
        ("a", "a"),  # the first line goes on from the prompt
        ("a\n  ", "a\n  "),
    ],
)
def test_a_line_with_less_indentation_ends_a_text(
    text: str, expected: str, n_per_piece: int
) -> None:
    pieces = [(0.0, text[i : i + n_per_piece]) for i in range(0, len(text), n_per_piece)]
    assert written(LineLimits(n_indent=4), pieces) == (expected, expected != text)
