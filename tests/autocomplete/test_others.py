"""Excerpts of other open documents: what is chosen, how long it stays, what that saves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest

from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document
from edgedec.autocomplete.layout import PromptLayout
from edgedec.autocomplete.others import OtherDocuments
from edgedec.autocomplete.pieces import PieceEncoder
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.session_memory import SessionMemory
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.tokenizer import Tokenizer

from .conftest import FILE_MARK, FILLING

Maker = Callable[..., Engine]
NUMBERS = "def alpha_number():\n    return alpha_beta\n"
SHAPES = "class Circle:\n    radius = 3\n"


def end(text: str, name: str) -> Document:
    return Document(text, len(text), name)


def test_what_has_words_in_common_is_chosen() -> None:
    others = OtherDocuments()
    others.see(end(SHAPES, "shapes.py"))
    others.see(end(NUMBERS, "numbers.py"))
    others.see(end("print(alpha_number", "main.py"))
    (found,) = others.choose("main.py", "print(alpha_number", 100, lambda one: len(one.text))
    assert (found.name, found.text) == ("numbers.py", NUMBERS)
    assert not others.choose("main.py", "nothing alike", 100, lambda one: len(one.text))
    assert not others.choose("main.py", "alpha_number", 10, lambda one: len(one.text))
    assert not others.choose("main.py", NUMBERS, 100, lambda one: len(one.text))
    others.forget("numbers.py")
    assert not others.choose("main.py", "alpha_number", 100, lambda one: len(one.text))


def test_excerpts_that_follow_one_another_are_one_and_rare_words_count_more() -> None:
    others = OtherDocuments()
    lines = [f"usual rare{i // 12}\n" for i in range(60)]
    others.see(end("".join(lines), "long.txt"))
    near = "rare1 rare2 rare4"
    found = others.choose("main.txt", near, 3 * 12, lambda one: one.text.count("\n"))
    assert [one.text for one in found] == ["".join(lines[12:36]), "".join(lines[48:])]


def test_a_model_of_code_reads_others_with_their_names(make_filling: Maker) -> None:
    engine = make_filling(FILE_MARK)
    layout = PromptLayout(engine, AutocompleteConfig(n_before=128, n_after=8, max_new_tokens=8))
    layout.others.see(end(NUMBERS, "file:///home/me/numbers.py"))
    window = layout.window(end("alpha_number(", "file:///home/me/main.py"))
    tokens, codec = layout.prompt(window), engine.tokenizer
    file, prefix = (codec.encode_rendered(text, {})[0] for text in (FILE_MARK, FILLING[0]))
    head = [file, *codec.encode(f"numbers.py\n{NUMBERS}"), file, *codec.encode("main.py\n"), prefix]
    assert tokens[: len(head)] == head
    assert len(tokens) <= engine.context


def test_others_stay_while_one_types_and_leave_when_they_are_gone(filling: Engine) -> None:
    layout = PromptLayout(filling, AutocompleteConfig(n_before=128, n_after=8, max_new_tokens=8))
    layout.others.see(end(NUMBERS, "numbers.py"))
    text = "alpha_number and what else there is to say of it"
    prompts = [layout.prompt(layout.window(end(text[:n], "main.py"))) for n in range(20, 40)]
    for one, other in pairwise(prompts):
        assert common_prefix(one, other) >= len(one) - 4
    layout.window(end(NUMBERS + "more", "numbers.py"))
    assert layout.prompt(layout.window(end(text[:39], "main.py"))) == prompts[-1]
    layout.window(end("gone", "numbers.py"))
    assert layout.window(end(text[:40], "main.py")).others == ()


def test_files_that_are_switched_between_are_not_read_again(
    make_engine: Maker, tokenizer: Tokenizer
) -> None:
    """Their KV caches outlive the other file, and so do the excerpts that come before them."""
    words = "one two three four five six seven eight nine ten "
    config = AutocompleteConfig(max_idle_cpu=0.0, min_probability=1.0, n_before=256)
    with (
        make_engine(context=512, memory=SessionMemory(1 << 24)) as engine,
        Autocompleter(engine, config) as completer,
    ):
        texts = {name: f"{name} {words}" for name in ("a.txt", "b.txt")}

        def n_new(name: str) -> int:
            counts = completer.counts
            before = counts.n_prompt - counts.n_reused
            completer.update(end(texts[name], name)).result(timeout=60)
            return counts.n_prompt - counts.n_reused - before

        first = [n_new(name) for name in texts]
        assert min(first) > 10
        n_new("a.txt")  # the other one is known by now
        for name in ("b.txt", "a.txt", "b.txt"):
            texts[name] += "x "
            assert n_new(name) <= 4


def test_no_more_is_remembered_than_needed() -> None:
    others = OtherDocuments()
    for i in range(100):
        others.see(end(f"document{i} " + "x" * 100_000, f"{i}.txt"))
    assert len(others._seen) == 8
    assert all(len(seen.text) <= 2 * 8192 for seen in others._seen.values())


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_pieces_have_the_tokens_of_the_whole(tokenizer: Tokenizer, ends: str) -> None:
    pieces = PieceEncoder(tokenizer)
    text = f"def f(x):{ends}    return x{ends}{ends}Some words, and more of them{ends}" * 40
    for n in (0, 1, 200, 1000, len(text)):
        assert pieces.encode(text[:n]) == tokenizer.encode(text[:n])
