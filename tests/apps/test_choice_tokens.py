"""A token that holds the end of a prompt and the beginning of a choice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from edgedec.apps.evaluation.choices import ChoiceProblem, encode_choices

MERGED = {"Answer: B": [7], "Answer: A": [8]}


def encoded(text: str) -> list[int]:
    """Returns ids of characters, apart from texts that `MERGED` ends with."""
    for end, ids in MERGED.items():
        if text.endswith(end):
            return [*map(ord, text.removesuffix(end)), *ids]
    return list(map(ord, text))


@pytest.mark.parametrize(
    ("prompt", "choices"),
    [
        ("Q\nAnswer:", ("A", "B")),  # both swallow the end of the prompt
        ("Q\nAnswer:", ("A", "C")),  # one of them does
        ("Answer:", ("A", "B")),  # nothing of the prompt is left
        ("Q\nAnswer:", ("C", "D")),
    ],
)
def test_a_shared_token_is_the_choices(prompt: str, choices: tuple[str, ...]) -> None:
    engine = cast(Any, SimpleNamespace(encode=encoded))
    problem = ChoiceProblem("p", "p:1", prompt, choices, choices, 0)
    found = encode_choices(engine, problem, [1])
    assert all(found.ends)
    for choice, end in zip(choices, found.ends, strict=True):
        start = [] if found.prompt == [1] else found.prompt
        assert [*start, *end] == encoded(f"{prompt} {choice}")
