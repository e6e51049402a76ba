"""GGUF files whose vocabulary merges characters, as Gemma 4's does, against llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.export.checkpoints.gguf_tokenizer import build_tokenizer, checked_text, read_special
from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields
from tests.export.checkpoints.test_gguf_pre_tokenizers import TEXTS, write_vocabulary

BLANK = "\u2581"
CONTROL = ("<pad>", "<eos>", "<bos>", "<unk>", "<|turn>", "<turn|>")
MORE_TEXTS = (
    "", " ", "   a", "a ", "tab\tx", "\n\n", "x\n\ny", "\u2581x", " \n ", "<turn|>hi<|turn>",
    "<0x41>", "caf\u00e9\n", "\u00ff\u0100", "don't", "cat\r\ncat", "two  two",
)  # fmt: skip
IDS: dict[str, list[int]] = json.loads(
    Path(__file__).with_name("character_bpe_ids.json").read_text(encoding="utf-8")
)
"""Text -> ids, by llama.cpp."""


def metadata() -> dict[str, Any]:
    """Returns the metadata of a file with parts of `TEXTS` as tokens."""
    known = dict.fromkeys([*CONTROL, *(f"<0x{i:02X}>" for i in range(256)), "\n", "\n\n"])
    n_odd, merges = len(known), dict[str, None]()
    for text in (*TEXTS, *MORE_TEXTS[:9]):
        for line in text.replace(" ", BLANK).split("\n"):
            parts = [line[i : i + n] for n in range(1, 5) for i in range(len(line) - n + 1)]
            known |= dict.fromkeys(part for part in parts if part.isascii() or BLANK in part)
            merges |= {
                f"{part[:i]} {part[i:]}": None for part in parts for i in range(1, len(part))
            }
    tokens = list(known)
    ends = [merge.split(" ") for merge in merges]
    usable = [" ".join(pair) for pair in ends if {*pair, "".join(pair)} <= set(tokens)]
    return {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(
            [3] * len(CONTROL) + [6] * 256 + [1] * (len(tokens) - n_odd + 2), np.int32
        ),
        "tokenizer.ggml.merges": usable,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
    }


def fields(**changes: Any) -> Fields:
    changed = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Fields({**metadata(), **changed}, "test", CheckpointError)


def tokenizer() -> Tokenizer:
    return Tokenizer.from_str(build_tokenizer(fields(), len(metadata()["tokenizer.ggml.tokens"])))


def test_every_text_has_ids() -> None:
    assert list(IDS) == [*dict.fromkeys([*TEXTS, *MORE_TEXTS])]


@pytest.mark.parametrize("text", IDS)
def test_ids_are_those_of_llama_cpp(text: str) -> None:
    assert tokenizer().encode(text).ids == IDS[text]


@pytest.mark.parametrize("text", IDS)
def test_text_comes_back(text: str) -> None:
    expected = text.replace(BLANK, " ")
    assert tokenizer().decode(IDS[text], skip_special_tokens=False) == expected


@pytest.mark.models
def test_the_table_is_llama_cpps(tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="make test-models")
    path = tmp_path / "gemma4.gguf"
    write_vocabulary(path, metadata())
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text, ids in IDS.items():
        assert model.tokenize(text.encode(), add_bos=False, special=True) == ids, text
    model.close()


@pytest.mark.parametrize("stated", [{}, {"add_bos_token": False}, {"add_bos_token": True}])
def test_texts_begin_with_bos_whatever_is_stated(stated: dict[str, bool]) -> None:
    roles = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>"}
    assert read_special(fields(**stated), 10_000) == SpecialTokens((1, 5), (2,), roles)


@pytest.mark.parametrize("pre", ["default", "gpt-2", "gemma4", "qwen2"])
def test_the_pre_tokenizer_that_is_stated_means_nothing(pre: str) -> None:
    text = build_tokenizer(fields(pre=pre), 10_000)
    assert text == build_tokenizer(fields(), 10_000)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"merges": None}, "merges is missing"),
        ({"merges": ["a"]}, "merge 'a' is not a pair"),
        ({"model": "gemma5"}, "known: gpt2 .*, gemma4"),
    ],
)
def test_contradictions_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        build_tokenizer(fields(**changes), 10_000)


def test_merges_of_tokens_that_are_not_there_are_passed_over() -> None:
    merges = [*metadata()["tokenizer.ggml.merges"], "zq qz"]
    assert build_tokenizer(fields(merges=merges), 10_000) == build_tokenizer(fields(), 10_000)


def test_what_the_library_does_not_take_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"a\.gguf: the vocabulary makes no tokenizer: "):
        checked_text({"model": {"type": "BPE", "vocab": {}, "merges": ["a b"]}}, "a.gguf")
