"""Tokenizers from GGUF metadata against those transformers builds from the same vocabulary.

transformers' own reading of a Llama GGUF ignores ``tokenizer.ggml.pre`` (no digit splitting), so
the references are its classes for the family, built from the file's vocabulary and merges.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.gguf import GgufCheckpoint
from edgedec.export.checkpoints.gguf_header import read_header
from edgedec.export.checkpoints.gguf_pre_tokenizers import PRE_TOKENIZERS
from edgedec.export.checkpoints.gguf_tokenizer import TURN_ENDS, read_special
from edgedec.export.checkpoints.mapped_file import MappedFile
from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.models.errors import CheckpointError, EdgedecError, UnsupportedModelError
from edgedec.models.fields import Fields


def reference(path: Path, family: str, folder: Path) -> Any:
    """Returns the transformers tokenizer of ``family`` over the file's own vocabulary."""
    transformers = pytest.importorskip("transformers", reason="needs the dev extra")
    from tokenizers import pre_tokenizers

    metadata = read_header(MappedFile(path)).metadata
    tokens = metadata["tokenizer.ggml.tokens"]
    (folder / "vocab.json").write_text(json.dumps({t: i for i, t in enumerate(tokens)}))
    merges = "\n".join(["#version: 0.2", *metadata["tokenizer.ggml.merges"], ""])
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    files = {"vocab_file": str(folder / "vocab.json"), "merges_file": str(folder / "merges.txt")}
    if family == "qwen2":
        tokenizer = transformers.Qwen2TokenizerFast(**files)
    else:
        tokenizer = transformers.GPT2TokenizerFast(**files)
        steps = [pre_tokenizers.Digits(individual_digits=True)]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    for token, kind in zip(tokens, metadata["tokenizer.ggml.token_type"].tolist(), strict=True):
        if kind in (3, 4):
            added = transformers.AddedToken(token, special=kind == 3, normalized=False)
            tokenizer.add_tokens([added], special_tokens=kind == 3)
    return tokenizer


def assert_same_ids(path: Path, family: str, folder: Path, strings: list[str]) -> None:
    theirs = reference(path, family, folder)
    ours = Tokenizer.from_str(GgufCheckpoint(path).tokenizer_json())
    for text in strings:
        got = ours.encode(text, add_special_tokens=False).ids
        assert got == theirs.encode(text, add_special_tokens=False), repr(text)
    # A second opinion that shares no code with either: pure Python merging.
    slow = slow_reference(theirs, family, folder)
    for text in strings[:500]:
        assert ours.encode(text, add_special_tokens=False).ids == slow(text), repr(text)


def slow_reference(fast: Any, family: str, folder: Path) -> Callable[[str], list[int]]:
    """Returns an encoder of transformers' pure Python classes."""
    import regex
    import transformers

    name = "Qwen2Tokenizer" if family == "qwen2" else "GPT2Tokenizer"
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    slow = getattr(transformers, name)(*files)
    slow.add_tokens(list(fast.added_tokens_decoder.values()))
    added = "|".join(regex.escape(str(token)) for token in fast.added_tokens_decoder.values())
    pattern = f"({added})" if family == "qwen2" else rf"({added}|\p{{N}})"

    def encode(text: str) -> list[int]:
        pieces = [piece for piece in regex.split(pattern, text) if piece]
        tokens = [token for piece in pieces for token in slow.tokenize(piece)]
        return [slow.encoder[token] for token in tokens if token in slow.encoder]

    return encode


@pytest.mark.e2e
def test_smollm2_ids(smollm2_file: Path, tmp_path: Path, strings: list[str]) -> None:
    assert_same_ids(smollm2_file, "smollm", tmp_path, strings)


@pytest.mark.pair
def test_qwen_ids(qwen_file: Path, tmp_path: Path, strings: list[str]) -> None:
    assert_same_ids(qwen_file, "qwen2", tmp_path, strings)


@pytest.mark.pair
def test_qwen_text_comes_back(qwen_file: Path, strings: list[str]) -> None:
    tokenizer = Tokenizer.from_str(GgufCheckpoint(qwen_file).tokenizer_json())
    for text in strings:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        assert decoded == unicodedata.normalize("NFC", text)


@pytest.mark.e2e
def test_smollm2_special_tokens(smollm2_file: Path) -> None:
    tokenizer = Tokenizer.from_str(GgufCheckpoint(smollm2_file).tokenizer_json())
    ids = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n").ids
    assert ids[0] == 1
    assert ids.count(2) == 1
    added = tokenizer.get_added_tokens_decoder()
    assert sorted(added) == list(range(17))
    assert all(token.special for token in added.values())
    assert "<|im_start|>" not in tokenizer.decode(ids)
    assert "<|im_start|>" in tokenizer.decode(ids, skip_special_tokens=False)


@pytest.mark.slow
def test_tiny_vocabulary_merges_and_flags(make_gguf: Any) -> None:
    tokenizer = Tokenizer.from_str(open_checkpoint(str(make_gguf("llama"))).tokenizer_json())
    tokens = tokenizer.encode("hello  w12<|im_end|><tool>").tokens
    assert tokens == ["hell", "o", "Ġ", "Ġw", "1", "2", "<|im_end|>", "<tool>"]
    special = {t.content: t.special for t in tokenizer.get_added_tokens_decoder().values()}
    assert special == {
        "<|endoftext|>": True, "<|im_start|>": True, "<|im_end|>": True, "<tool>": False
    }  # fmt: skip
    assert tokenizer.token_to_id("[PAD280]") is None


def test_merged_digits_stay_split_only_where_the_family_splits(make_gguf: Any) -> None:
    def tokens(pre: str | None, text: str) -> list[str]:
        path = make_gguf("llama", metadata={"tokenizer.ggml.pre": pre})
        found: list[str] = (
            Tokenizer.from_str(open_checkpoint(str(path)).tokenizer_json()).encode(text).tokens
        )
        return found

    assert tokens("smollm", "12") == ["1", "2"]
    assert tokens("qwen2", "12") == ["1", "2"]
    for pre in ("gpt-2", "default", None, "llama-bpe"):
        assert tokens(pre, "12") == ["12"]
    # Llama 3 cuts numbers after every third digit.
    assert tokens("llama-bpe", "999312") == ["9", "9", "9", "3", "12"]
    assert tokens("gpt-2", "999312") == ["9", "9", "9", "3", "12"]
    assert tokens("llama-bpe", "9912") == ["9", "9", "1", "2"]
    assert tokens("gpt-2", "9912") == ["9", "9", "12"]


def test_tokens_that_hold_a_blank_are_merged(make_gguf: Any) -> None:
    tokens = [chr(ord("!") + i) for i in range(94)] + [" h", " he"]

    def merges_of(*merges: str) -> list[Any]:
        metadata = {
            "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": None,
            "tokenizer.ggml.merges": merges,
        }  # fmt: skip
        checkpoint = open_checkpoint(str(make_gguf("llama", metadata=metadata)))
        found: list[Any] = json.loads(checkpoint.tokenizer_json())["model"]["merges"]
        return found

    assert merges_of(" h e") == [[" h", "e"]]
    tokens.append("he")
    assert merges_of("h e") == ["h e"]
    assert merges_of("h e", " h e") == [["h", "e"], [" h", "e"]]


@pytest.mark.slow
def test_merges_of_tokens_that_were_cut_off_do_nothing(make_gguf: Any) -> None:
    """As llama.cpp reads them; a tokenizer.json with one cannot be loaded."""

    def ids(merges: list[str]) -> list[int]:
        path = make_gguf("llama", metadata={"tokenizer.ggml.merges": merges})
        text = open_checkpoint(str(path)).tokenizer_json()
        return list(Tokenizer.from_str(text).encode("hello w12  x").ids)

    merges = ["h e", "l l", "he ll", "1 2"]
    assert ids(["zz qq", *merges, "h zz", "x y"]) == ids(merges)


@pytest.mark.slow
def test_only_qwens_compose(make_gguf: Any) -> None:
    for pre in PRE_TOKENIZERS:
        path = make_gguf("llama", metadata={"tokenizer.ggml.pre": pre})
        tokenizer = Tokenizer.from_str(open_checkpoint(str(path)).tokenizer_json())
        ids = tokenizer.encode("e\u0301").ids
        assert (ids == tokenizer.encode("\u00e9").ids) is (pre in ("qwen2", "qwen35"))


def test_llama3_adds_bos_unless_it_says_otherwise(make_gguf: Any) -> None:
    def adds_bos(**metadata: Any) -> bool:
        fields = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
        special = open_checkpoint(str(make_gguf("llama", metadata=fields))).special
        assert special.opening_ids in ((), (1,))
        return special.opening_ids == (1,)

    assert adds_bos(pre="llama-bpe")
    assert not adds_bos(pre="llama-bpe", add_bos_token=False)
    assert not adds_bos(pre="llama-bpe", bos_token_id=None)
    assert not adds_bos(pre="smollm")
    assert adds_bos(pre="smollm", add_bos_token=True)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"model": "plamo2"}, ["tokenizer model 'plamo2'", "gpt2", "llama and t5", "Hugging Face"]),
        ({"pre": "chameleon"}, ["pre-tokenizer 'chameleon'", "qwen2", "smollm"]),
    ],
)
def test_unknown_tokenizers_are_named(
    make_gguf: Any, metadata: dict[str, Any], words: list[str]
) -> None:
    fields = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    checkpoint = open_checkpoint(str(make_gguf("llama", metadata=fields)))
    with pytest.raises(UnsupportedModelError) as caught:
        checkpoint.tokenizer_json()
    assert all(word in str(caught.value) for word in words)


def test_wordpiece_needs_the_tokens_of_its_ends(make_gguf: Any) -> None:
    fields = {"tokenizer.ggml.model": "bert", "tokenizer.ggml.bos_token_id": None}
    checkpoint = open_checkpoint(str(make_gguf("llama", metadata=fields)))
    with pytest.raises(CheckpointError, match=r"the vocabulary has no \[CLS\]"):
        checkpoint.tokenizer_json()


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"model": None}, "model is missing"),
        ({"tokens": None}, "tokens is missing"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["he"]}, "merge 'he' is not a pair"),
        ({"merges": ["he "]}, "merge 'he ' is not a pair"),
        ({"merges": ["never seen"]}, "none of the 1 merges is of tokens"),
        ({"token_type": [1, 2, 3]}, "one integer for each"),
        ({"tokens": ["a"] * 292}, "tokens 0 and 1 are both 'a'"),
        ({"tokens": [str(i) for i in range(301)], "token_type": None}, "301 tokens.*300 rows"),
        ({"tokens": [1, 2, 3]}, "expected a list of strings"),
    ],
)
def test_vocabularies_that_contradict(make_gguf: Any, metadata: dict[str, Any], words: str) -> None:
    fields = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    checkpoint = open_checkpoint(str(make_gguf("llama", metadata=fields)))
    with pytest.raises(CheckpointError, match=words) as caught:
        assert checkpoint.tokenizer_json() is checkpoint.special
    assert isinstance(caught.value, EdgedecError)
    assert len(str(caught.value).splitlines()) == 1


def test_ids_that_are_no_tokens_count_as_absent(make_gguf: Any) -> None:
    """As llama.cpp reads them, which warns and goes on."""
    odd = {"eos": 292, "bos": 0xFFFFFFFF, "unknown": -1, "padding": 2**31 - 1}
    fields = {f"tokenizer.ggml.{key}_token_id": value for key, value in odd.items()}
    fields["tokenizer.ggml.add_bos_token"] = True
    special = open_checkpoint(str(make_gguf("llama", metadata=fields))).special
    assert special == SpecialTokens((0, 2), (), {})


def special_of(kinds: dict[str, int], **ids: int) -> SpecialTokens:
    """Returns what ends texts with these tokens, by their kinds."""
    metadata: dict[str, Any] = {f"tokenizer.ggml.{role}_token_id": i for role, i in ids.items()}
    metadata["tokenizer.ggml.model"] = "gpt2"
    metadata["tokenizer.ggml.tokens"] = list(kinds)
    metadata["tokenizer.ggml.token_type"] = np.array(list(kinds.values()), np.int32)
    return read_special(Fields(metadata, "test", CheckpointError), len(kinds))


@pytest.mark.parametrize("kind", [1, 3, 4])
@pytest.mark.parametrize("text", TURN_ENDS)
def test_what_ends_a_turn_does_so_whatever_its_kind(text: str, kind: int) -> None:
    """As in llama.cpp, whose converters write other kinds now and then."""
    assert special_of({"a": 1, text: kind}).eos_ids == (1,)


def test_a_token_that_fills_up_ends_nothing() -> None:
    assert special_of({"a": 1, "<|im_end|>": 5}).eos_ids == ()


@pytest.mark.parametrize("ends", [("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>")])
def test_harmony_goes_on_behind_a_message(ends: tuple[str, str]) -> None:
    """gpt-oss ends its thoughts with <|end|>, and the turn with another token."""
    kinds = {"<|end|>": 3, **dict.fromkeys(ends, 3)}
    assert special_of(kinds, eos=1).eos_ids == (1, 2)
    assert special_of({"<|end|>": 3, ends[0]: 3}, eos=1).eos_ids == (1, 0)
