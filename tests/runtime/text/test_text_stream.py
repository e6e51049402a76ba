"""Stop texts and multi-byte characters in a stream of pieces."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgedec.runtime.text.text_stream import StopFilter, TextStream
from edgedec.runtime.text.tokenizer import Tokenizer

LETTERS = st.text("ab<|", max_size=24)
STOPS = st.lists(st.text("ab<|", min_size=1, max_size=5), min_size=0, max_size=3)


def filtered(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    stop_filter = StopFilter(stops)
    text = "".join(stop_filter.push(piece) for piece in pieces)
    return text + stop_filter.flush(), stop_filter.is_stopped


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The shortest beginning of ``text`` that ends in a stop text, without the longest such."""
    for end in range(1, len(text) + 1):
        endings = [stop for stop in stops if text[:end].endswith(stop)]
        if endings:
            return text[: end - max(map(len, endings))], True
    return text, False


@settings(max_examples=400)
@given(LETTERS, STOPS, st.lists(st.integers(0, 24), max_size=8))
def test_any_cut_gives_the_same_text(text: str, stops: list[str], cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert filtered(pieces, stops) == expected(text, stops)


def test_possible_beginning_is_held_back_and_no_more() -> None:
    stop_filter = StopFilter(("</end>",))
    assert stop_filter.push("so <") == "so "
    assert stop_filter.push("/en") == ""
    assert stop_filter.push("!") == "</en!"
    assert stop_filter.push("x</end>y") == "x"
    assert stop_filter.is_stopped
    assert stop_filter.push("more") == ""
    assert stop_filter.flush() == ""


@pytest.mark.parametrize(
    "text",
    ["naïve Größe", "日本語 text", "🙂🙃 👩‍👩‍👧", "e\u0301\u200b\u200d", "a\ufffdb", "\u0000\x07"],
)
def test_characters_appear_whole(tokenizer: Tokenizer, text: str) -> None:
    stream = TextStream(tokenizer.detokenizer())
    pieces = [stream.push(token) for token in tokenizer.encode(text)]
    pieces.append(stream.flush())
    assert "".join(pieces) == text == stream.text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in pieces)


def test_incomplete_character_at_the_end_is_flushed(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ok 蠢")  # not in the training text: one token a byte
    stream = TextStream(tokenizer.detokenizer())
    text = "".join(stream.push(token) for token in ids[:-1]) + stream.flush()
    assert text == tokenizer.decode(ids[:-1]) == "ok \ufffd"


def test_invalid_bytes_then_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("蠢")[:2], *tokenizer.encode(" and on"), *tokenizer.encode("蠢")[:1]]
    stream = TextStream(tokenizer.detokenizer())
    text = "".join(stream.push(token) for token in ids) + stream.flush()
    assert text == tokenizer.decode(ids)


def test_special_tokens_are_left_out(tokenizer: Tokenizer) -> None:
    ids = [1, *tokenizer.encode("user"), 2, 0, *tokenizer.encode(" text")]
    stream = TextStream(tokenizer.detokenizer())
    assert "".join(stream.push(token) for token in ids) + stream.flush() == "user text"


def test_stop_text_across_tokens(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer.detokenizer(), ("🙂",))
    for token in tokenizer.encode("jumps 🙂 over"):
        stream.push(token)
    assert stream.is_stopped
    assert stream.text == "jumps "
