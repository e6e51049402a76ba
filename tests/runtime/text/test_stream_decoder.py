"""Outputs as they appear, of tokenizers that write blanks before words and characters in bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from edgedec.runtime.text.infill import FORMATS as INFILL_FORMATS
from edgedec.runtime.text.infill import find_infill_tokens
from edgedec.runtime.text.text_stream import TextStream
from edgedec.runtime.text.tokenizer import Tokenizer

WORDS = ["a", "▁cat", "▁dog", ".", "▁", "▁▁", "é", "x", "\n"]
BYTES = [f"<0x{value:02X}>" for value in range(256)]
PIECES = ["<s>", "</s>", "<unk>", *BYTES, *WORDS]

LLAMA = [
    decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
    decoders.Strip(content=" ", left=1, right=0),
]  # fmt: skip
DECODERS: dict[str, Callable[[], Any]] = {
    "strip": lambda: decoders.Sequence(LLAMA),
    "gemma": lambda: decoders.Sequence(LLAMA[:3]),
    "metaspace": lambda: decoders.Metaspace(),
    "metaspace, bytes": lambda: decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
}


def make(kind: str) -> Tokenizer:
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    backend.decoder = DECODERS[kind]()
    backend.add_special_tokens(["<s>", "</s>", "<unk>"])
    return Tokenizer(backend)


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def streamed(tokenizer: Tokenizer, tokens: Sequence[int], before: Sequence[int] = ()) -> str:
    stream = TextStream(tokenizer.detokenizer(before))
    return "".join(stream.push(token) for token in tokens) + stream.flush()


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(
    "before", [["a"], ["<s>", "a"], ["▁cat"], ["a"] * 40, ["<0xC3>", "<0xA9>"]]
)
def test_an_output_goes_on_from_its_prompt(kind: str, before: list[str]) -> None:
    tokenizer, known = make(kind), ids(*before)
    for new in (["▁cat", "▁dog", "."], ["▁", "▁▁", "x"], [".", "▁cat"], ["</s>", "▁cat"]):
        n_known = len(tokenizer.decode(known))
        whole = tokenizer.decode([*known, *ids(*new)])
        assert streamed(tokenizer, ids(*new), known) == whole[n_known:], new


@pytest.mark.parametrize("kind", DECODERS)
def test_an_answer_is_a_text_of_its_own(kind: str) -> None:
    tokenizer = make(kind)
    for new in (["▁cat", "▁dog"], ["a", "▁cat"], ["<s>", "▁cat"], ["▁", "▁", "x"], ["é", "▁cat"]):
        assert streamed(tokenizer, ids(*new)) == tokenizer.decode(ids(*new)), new
    assert streamed(tokenizer, ids("▁cat", "▁dog"), ids("<s>")) == tokenizer.decode(
        ids("▁cat", "▁dog")
    )


@pytest.mark.parametrize("kind", ["strip", "gemma", "metaspace, bytes"])
def test_a_blank_in_bytes_may_open_an_answer(kind: str) -> None:
    tokenizer = make(kind)
    for new in (["<0x20>"], ["<0x20>", "<0x20>", "x"], ["<0x20>", "▁cat"]):
        assert streamed(tokenizer, ids(*new)) == tokenizer.decode(ids(*new)), new


BROKEN = {
    "a byte too many": (["<0xC3>", "<0xA9>", "<0x80>", "▁cat"], "é\ufffd cat"),
    "a byte that begins nothing": (["a", "<0xFF>", "▁cat"], "a\ufffd cat"),
    "half a character, then a word": (["<0xC3>", "▁cat", "x"], "\ufffd catx"),
    "half a character at the end": (["a", "<0xE2>", "<0x82>"], "a\ufffd"),
    "two halves": (["<0xC3>", "<0xC3>", "<0xA9>"], "\ufffdé"),
    "a surrogate": (["<0xED>", "<0xA0>", "<0x80>", "x"], "\ufffd\ufffd\ufffdx"),
    "four bytes": (["<0xF0>", "<0x9F>", "<0x99>", "<0x82>", "▁dog"], "🙂 dog"),
    "a broken one among words": (["▁cat", "<0x80>", "<0x80>", "▁dog", "<0x80>"], None),
    "a special token within": (["<0xC3>", "</s>", "<0xA9>"], None),
}


@pytest.mark.parametrize("kind", ["strip", "gemma", "metaspace, bytes"])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_bytes_become_the_replacement_character(kind: str, name: str) -> None:
    pieces, expected = BROKEN[name]
    text = streamed(make(kind), ids(*pieces), ids("a"))
    assert expected is None or text == expected
    assert text.count("\ufffd") <= sum(piece in BYTES for piece in pieces)
    assert [word for word in ("cat", "dog") if f"▁{word}" in pieces] == [
        word for word in ("cat", "dog") if f" {word}" in text
    ]


@pytest.mark.parametrize("kind", DECODERS)
@settings(max_examples=150, deadline=None)
@given(tokens=st.lists(st.integers(0, len(PIECES) - 1), max_size=30), n_before=st.integers(0, 3))
def test_no_tokens_end_an_output(kind: str, tokens: list[int], n_before: int) -> None:
    tokenizer = make(kind)
    text = streamed(tokenizer, tokens[n_before:], tokens[:n_before])
    whole = tokenizer.decode(tokens)
    assert text.replace("\ufffd", "") in whole.replace("\ufffd", "") or "\ufffd" in whole + text


MARKS = [
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_call>", "</tool_call>", "<tool_response>", "[TOOL_CALLS]",
    "<｜tool▁calls▁begin｜>", "<fim_prefix>", "<function=", "<table>", "   ", "<think>",
]  # fmt: skip
CONTROL = {mark for mark in MARKS if mark not in ("<function=", "<table>", "   ", "<think>")}


@pytest.fixture
def coder() -> Tokenizer:
    """Returns a tokenizer whose marks are all said to be ordinary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return Tokenizer(backend)


@pytest.mark.parametrize("mark", MARKS)
def test_text_becomes_no_control_token(coder: Tokenizer, mark: str) -> None:
    (token,) = coder.encode_rendered(mark, {})
    assert (token in coder.encode(f"x{mark}y")) is (mark not in CONTROL)
    assert coder.decode(coder.encode(f"x{mark}y")) == f"x{mark}y"
    # What the file calls ordinary is shown, as transformers does.
    assert coder.decode([token]) == mark
    assert streamed(coder, [token, *coder.encode("y")]) == f"{mark}y"


CONTROL_OF_FAMILIES = (
    "<fim-prefix>", "<fim_suffix>", "<fim-pad>", "<reponame>", "<gh_stars>", "<issue_start>",
    "<jupyter_code>", "<｜fim▁begin｜>", "<｜tool▁calls▁begin｜>", "<｜hy_User｜>", "▁<PRE>",
    "▁<EOT>",
    "<MID>", "<[fim-prefix]>", "[PREFIX]", "[SUFFIX]", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]",
    "[SYSTEM_PROMPT]", "[CALL_ID]", "<start_of_turn>", "<end_of_turn>", "<start_function_call>",
    "<start_of_image>", "<turn|>", "<|tool_response>", "<|channel>", "[|user|]", "[|endofturn|]",
    "<tool_result>", "<function_call>", "<bos>", "<pad>", "<|message|>", "<|code_prefix|>",
    "<|tool_list_start|>", "<|python_tag|>", "<|assistant|>", "<empty_output>",
)  # fmt: skip
ORDINARY = ("<think>", "</think>", "<table>", "<h1>", "<code>", "    ", "def", "[x]", "<unused1>")


def with_ordinary(*marks: str) -> Tokenizer:
    """Returns a tokenizer of bytes, and of ``marks`` that are said to be ordinary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in marks])
    return Tokenizer(backend)


@pytest.mark.parametrize("mark", [*CONTROL_OF_FAMILIES, *ORDINARY])
def test_control_tokens_of_all_families(mark: str) -> None:
    """Only ordinary marks become one token out of what somebody typed."""
    tokenizer = with_ordinary(mark)
    assert tokenizer.encode_rendered(mark, {}) == [256]
    assert (256 in tokenizer.encode(f"x{mark}y")) is (mark in ORDINARY)
    assert tokenizer.decode(tokenizer.encode(f"x{mark}y")) == f"x{mark}y"


def bytewise(*pieces: bytes) -> tuple[Tokenizer, list[bytes]]:
    """A byte-level tokenizer with a token for each byte, then ``pieces``, and what each spells."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    spelt = [Tokenizer(backend).spellings()[i] for i in range(256)]
    letters = dict(zip(spelt, alphabet, strict=True))
    names = ["".join(letters[bytes([value])] for value in piece) for piece in pieces]
    vocabulary = {name: i for i, name in enumerate([*alphabet, *names])}
    backend.model = models.BPE(vocabulary, [])
    return Tokenizer(backend), [*map(bytes, spelt), *pieces]  # type: ignore[arg-type]


CUT = "aé€😀".encode()
BYTEWISE = bytewise(CUT[:4], CUT[4:8], CUT[2:4], b" the", "\ufffd".encode())


@settings(deadline=None)
@given(tokens=st.lists(st.sampled_from([*range(256, 261), *range(256)]), max_size=20))
def test_text_in_bytes_is_that_of_all_bytes(tokens: list[int]) -> None:
    tokenizer, spelt = BYTEWISE
    whole = b"".join(spelt[token] for token in tokens).decode(errors="replace")
    assert streamed(tokenizer, tokens) == whole


def test_a_token_of_whole_characters_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, asked = BYTEWISE[0], []
    monkeypatch.setattr(tokenizer, "decode", lambda ids: asked.append(tuple(ids)) or "x")
    stream = tokenizer.detokenizer()
    assert [stream.push(259) for _ in range(3)] == ["x"] * 3
    assert asked == [(259,)] * 3


@pytest.mark.parametrize("marks", INFILL_FORMATS)
def test_every_family_of_infills_is_found(marks: tuple[str, str, str]) -> None:
    tokenizer = with_ordinary(*marks)
    infill = find_infill_tokens(tokenizer)
    assert infill is not None
    assert (infill.prefix, infill.suffix, infill.middle) == (256, 257, 258)
    assert {256, 257, 258} <= set(infill.stops)


def test_control_tokens_end_an_infill(coder: Tokenizer) -> None:
    infill = find_infill_tokens(coder)
    assert infill is not None
    for mark in ("<|file_sep|>", "<|repo_name|>", "<|fim_pad|>", "<|endoftext|>"):
        assert coder.encode_rendered(mark, {})[0] in infill.stops


@pytest.mark.parametrize(
    ("stop", "new", "expected"),
    [
        (("</s>",), ["▁cat", "</s>", "▁dog"], " cat"),
        (("cat</s>",), ["▁cat", "▁dog", "▁cat", "</s>", "▁dog"], " cat dog "),
        (("</s>x",), ["▁cat", "</s>", "▁dog", "</s>", "x", "a"], " cat dog"),
        (("<s></s>",), ["▁cat", "<s>", "a", "<s>", "</s>", "x"], " cata"),
        (("dog", "</s>"), ["▁cat", "▁dog", "</s>"], " cat "),
        (("</s>",), ["▁cat", "<s>", "▁dog"], " cat dog"),
        (("no", "</s>"), ["▁cat", "</s>", "▁dog"], " cat"),
        (("no",), ["▁cat", "</s>"], " cat"),
    ],
)
def test_stop_texts_may_spell_special_tokens(
    stop: tuple[str, ...], new: list[str], expected: str
) -> None:
    tokenizer = make("strip")
    stream = TextStream(tokenizer.detokenizer(ids("a")), stop, tokenizer.hidden_in(stop))
    text = ""
    for token in ids(*new):
        if not stream.is_stopped:
            text += stream.push(token)
    assert text + stream.flush() == expected == stream.text
