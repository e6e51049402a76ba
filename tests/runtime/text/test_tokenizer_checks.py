"""Tokenizer files of strangers: panics are one line, and texts are not multiplied."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from edgedec.models.errors import BundleError, SessionError
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.runtime.text.tokenizer_checks import panics_as

pytestmark = pytest.mark.robustness

BACKTRACKING = {
    "type": "Split",
    "pattern": {"Regex": "(a|a|aa)+$"},
    "behavior": "Isolated",
    "invert": False,
}


def load(backend: tokenizers.Tokenizer, folder: Path, **parts: Any) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(backend.to_str()), **parts}))
    return Tokenizer.load(path)


def test_a_panic_is_one_line(
    backend: tokenizers.Tokenizer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = load(backend, tmp_path, pre_tokenizer=BACKTRACKING)
    with pytest.raises(SessionError, match=r"^the tokenizer cannot treat this text[^\n]*$"):
        tokenizer.encode("a" * 50_000 + "b")
    assert capfd.readouterr().err == ""


def test_what_others_print_meanwhile_is_not_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with panics_as(ValueError):
        os.write(2, b"hello\n")
    assert capfd.readouterr().err == "hello\n"


@pytest.mark.parametrize(
    "normalizer",
    [
        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1_000_000},
        {"type": "Prepend", "prepend": "a" * 1000},
        {
            "type": "Sequence",
            "normalizers": 40 * [{"type": "Replace", "pattern": {"Regex": "."}, "content": "aa"}],
        },
    ],
)
def test_normalizers_that_multiply_a_text_are_refused(
    backend: tokenizers.Tokenizer, tmp_path: Path, normalizer: dict[str, Any]
) -> None:
    with pytest.raises(BundleError, match="times as long"):
        load(backend, tmp_path, normalizer=normalizer)


def test_ordinary_normalizers_are_not(backend: tokenizers.Tokenizer, tmp_path: Path) -> None:
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    parts = [{"type": "Prepend", "prepend": "▁"}, spaces, {"type": "NFKC"}]
    load(backend, tmp_path, normalizer={"type": "Sequence", "normalizers": parts})


class CountingCodec(Tokenizer):
    n_characters = 0

    def encode(self, text: str) -> list[int]:
        self.n_characters += len(text)
        return super().encode(text)


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_prompt_much_too_long_is_not_read_to_its_end(
    backend: tokenizers.Tokenizer, is_chat: bool
) -> None:
    from edgedec.runtime.text.chat_template import ChatTemplate

    codec = CountingCodec(backend)
    encoder = PromptEncoder(codec, ChatTemplate("{{ messages[0].content }}"), context=1000)
    text = "quick brown " * 2_000_000
    with pytest.raises(SessionError, match="the context 1000: shorten the prompt"):
        encoder.encode([{"role": "user", "content": text}] if is_chat else text)
    assert codec.n_characters < 100_000


def test_a_long_prompt_that_fits_is_encoded_whole(backend: tokenizers.Tokenizer) -> None:
    text = "quick brown " * 4000
    ids = PromptEncoder(Tokenizer(backend), context=48_000).encode(text)
    assert ids == Tokenizer(backend).encode(text)


@pytest.mark.parametrize("prompt", [b"hello", bytearray(b"hello"), memoryview(b"hello")])
def test_bytes_are_no_token_ids(backend: tokenizers.Tokenizer, prompt: Any) -> None:
    with pytest.raises(SessionError, match="expected text, chat messages"):
        PromptEncoder(Tokenizer(backend)).encode(prompt)
