"""Prompts that ask for what stands between two texts, in the form of each family of models."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from edgedec.runtime.text.infill import FORMATS, SUFFIX_FIRST, find_infill_tokens
from edgedec.runtime.text.tokenizer import Tokenizer

PUBLISHED = {
    "Qwen2.5-Coder": "<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>",
    "StarCoder2": "<fim_prefix>{before}<fim_suffix>{after}<fim_middle>",
    "SantaCoder": "<fim-prefix>{before}<fim-suffix>{after}<fim-middle>",
    "DeepSeek-Coder": "<｜fim▁begin｜>{before}<｜fim▁hole｜>{after}<｜fim▁end｜>",
    "CodeLlama": "▁<PRE>{before}▁<SUF>{after}▁<MID>",
    "CodeLlama, other spelling": "<PRE>{before}<SUF>{after}<MID>",
    "GLM": "<|code_prefix|>{before}<|code_suffix|>{after}<|code_middle|>",
    "Falcon-H1": "<|prefix|>{before}<|suffix|>{after}<|middle|>",
    "Seed-Coder": "<[fim-suffix]>{after}<[fim-prefix]>{before}<[fim-middle]>",
    "Codestral": "[SUFFIX]{after}[PREFIX]{before}",
}
"""As model cards write them."""

TEXTS = (("def f(", ")\n"), ("", "x = 1"), ("if a:", ""), ("a b", "c [PREFIX] d"))


def marks_of(form: str) -> list[str]:
    parts = form.replace("{before}", "\0").replace("{after}", "\0").split("\0")
    return [part for part in parts if part]


def with_marks(*marks: str) -> Tokenizer:
    """Returns a tokenizer of bytes that knows these control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([*marks, "<s>"])
    return Tokenizer(backend)


def ids_of(tokenizer: Tokenizer, form: str, before: str, after: str) -> list[int]:
    """Returns the ids of a form with texts in it, which never become marks themselves."""
    found: list[int] = []
    for part in form.replace("{", "\0{").replace("}", "}\0").split("\0"):
        texts = {"{before}": before, "{after}": after}
        if part in texts:
            found += tokenizer.encode(texts[part]) if texts[part] else []
        elif part:
            found += tokenizer.encode_rendered(part, {})
    return found


@pytest.mark.parametrize("texts", TEXTS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_prompts_are_those_of_the_card(name: str, texts: tuple[str, str]) -> None:
    form, (before, after) = PUBLISHED[name], texts
    tokenizer = with_marks(*marks_of(form))
    infill = find_infill_tokens(tokenizer)
    assert infill is not None
    parts = [tokenizer.encode(text) if text else [] for text in texts]
    assert infill.prompt(*parts) == ids_of(tokenizer, form, before, after)
    assert {tokenizer.encode_rendered(mark, {})[0] for mark in marks_of(form)} <= set(infill.stops)


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_is_typed_appends(name: str) -> None:
    """All but a mark for the middle stays where it was."""
    tokenizer = with_marks(*marks_of(PUBLISHED[name]))
    infill = find_infill_tokens(tokenizer)
    assert infill is not None
    short, long = (
        infill.typing_prompt(tokenizer.encode(text), tokenizer.encode(")"))
        for text in ("ab", "abc")
    )
    n_behind = 1 if name == "Seed-Coder" else 0
    assert long[: len(short) - n_behind] == short[: len(short) - n_behind]


def test_every_form_is_in_the_table() -> None:
    known = {frozenset(mark for mark in marks if mark) for marks in (*FORMATS, *SUFFIX_FIRST)}
    assert {frozenset(marks_of(form)) for form in PUBLISHED.values()} == known


@pytest.mark.parametrize(
    "marks",
    [
        (), ("<fim_prefix>",), ("<fim_prefix>", "<fim_suffix>"), ("<fim_suffix>", "<fim_middle>"),
        ("<fim_prefix>", "<fim-suffix>", "<|fim_middle|>"), ("[PREFIX]",), ("[SUFFIX]",),
        ("[SUFFIX]", "[MIDDLE]"), ("<[fim-prefix]>", "<[fim-suffix]>"), ("[INST]", "[/INST]"),
    ],
)  # fmt: skip
def test_parts_of_a_form_are_none(marks: tuple[str, ...]) -> None:
    assert find_infill_tokens(with_marks(*marks)) is None


def test_the_prefix_first_where_a_model_knows_both() -> None:
    both = [mark for name in ("Codestral", "Qwen2.5-Coder") for mark in marks_of(PUBLISHED[name])]
    infill = find_infill_tokens(with_marks(*both))
    assert infill is not None
    assert not infill.is_suffix_first
