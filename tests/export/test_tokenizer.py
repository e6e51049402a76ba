"""Tokenizers from GGUF metadata against those transformers builds from the same vocabulary.

transformers' own reading of a Llama GGUF ignores ``tokenizer.ggml.pre`` (no digit splitting), so
the references are its classes for the family, built from the file's vocabulary and merges.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.gguf import GgufCheckpoint
from edgedec.export.gguf_header import read_header
from edgedec.export.mapped_file import MappedFile
from edgedec.export.tokenizer import RECIPES
from edgedec.models.errors import CheckpointError, EdgedecError, UnsupportedModelError

N_STRINGS = 2000
REPOSITORY = Path(__file__).parents[2]

HOSTILE = [
    "", " ", "\n", "\t\t", "\r\n\r\n", " \n \n", "a  b   c    d", " " * 300, "\n" * 100, " \t" * 50,
    "x" + " " * 64, " " * 64 + "x", "\u00a0\u00a0x\u2003y\u3000z", "\ufeffBOM", "nul\x00nul",
    "\u200b\u200c\u200d\u2060", "a\u200db\u200cc", "\u202eright\u202c \u2066left\u2069",
    "e\u0301 \u00e9 E\u0301\u0302\u0303", "Z" + "\u0351\u0302\u0316" * 40, "\u0301leading mark",
    "\u1112\u1161\u11ab \ud55c", "\u212b \u00c5 A\u030a", "\ufb01 \u2460 \u00bd \u2167 \u00b2",
    "\u0661\u0662\u0663 \u0967\u0968 \uff11\uff12 123456789 1,000.00 0x1F 3.14e-10",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e9\U0001f1ea",
    "\U0001f44d\U0001f3fd \u2764\ufe0f \u2764", "\U00020000\U0002a6d6 \U0001d54f \U000e0041",
    "\ue000\uf8ff \uffff \U0010ffff \U0005ffff",
    "\u6f22\u5b57\u304b\u306a\u30ab\u30ca \u7b80\u4f53",
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u05e2\u05d1\u05e8\u05d9\u05ea \u0e44\u0e17\u0e22",
    "I'm you're he'll she'd we've it's don't 'S 'LL 'Re I'M YOU'RE \u2019s", "''''s 'tis 'd'd'd",
    "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|", "<|im_start|><|im_start|>", "<|IM_START|>",
    " <|endoftext|> ", "a<|endoftext|>b", "<tool_call>{}</tool_call>",
    "<|fim_prefix|>x<|fim_suffix|>",
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # \u03bb\n\n\n\tpass\n",
    "!!!???...---===***###$$$%%%^^^&&&", "\u2014\u2026\u201c\u201d\u00ab\u00bb\u20ac\u00a3\u00a5",
    "a\rb\nc\r\nd\x0be\x0cf\x85g\u2028h\u2029i", "\x01\x02\x03\x1b[31m\x7f\x80\x9f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" * 8, "\u0130\u0131 \u017f \u1e9e \u03a3\u03c2",
]  # fmt: skip


def texts() -> Iterator[str]:
    """Yields documents of the shared data folder, or else of this repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    files = sorted(folder.glob("*.jsonl")) + sorted(folder.glob("*.txt"))
    for path in files or [*REPOSITORY.glob("*.md"), *sorted(REPOSITORY.rglob("tests/**/*.py"))]:
        content = path.read_text(encoding="utf-8")[:400_000]
        if path.suffix != ".jsonl":
            yield content
            continue
        for line in content.splitlines()[:-1]:
            values = json.loads(line).values()
            yield "\n".join(v if isinstance(v, str) else json.dumps(v) for v in values)


@pytest.fixture(scope="module")
def strings() -> list[str]:
    """Returns 2,000 cuts of many lengths, plus hostile strings."""
    whole = "\n".join(texts())
    rng = np.random.default_rng(0)
    starts = rng.integers(0, len(whole) - 400, N_STRINGS)
    lengths = rng.integers(1, 400, N_STRINGS)
    cuts = [whole[i : i + n] for i, n in zip(starts, lengths, strict=True)]
    return (
        cuts + HOSTILE + [left + right for left, right in zip(HOSTILE, HOSTILE[::-1], strict=True)]
    )


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
    for text in strings[: N_STRINGS // 4]:
        assert ours.encode(text, add_special_tokens=False).ids == slow(text), repr(text)


def slow_reference(fast: Any, family: str, folder: Path) -> Callable[[str], list[int]]:
    """Returns an encoder of transformers' pure Python classes."""
    import regex
    import transformers

    name = "Qwen2Tokenizer" if family == "qwen2" else "GPT2Tokenizer"
    files = (str(folder / "vocab.json"), str(folder / "merges.txt"))
    slow = getattr(transformers, name)(*files)
    slow.add_tokens(list(fast.added_tokens_decoder.values()))
    pattern = r"(<\|\w+\|>)" if family == "qwen2" else r"(<\|\w+\|>|\p{N})"

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


def test_only_qwen2_composes(make_gguf: Any) -> None:
    for pre in RECIPES:
        path = make_gguf("llama", metadata={"tokenizer.ggml.pre": pre})
        tokenizer = Tokenizer.from_str(open_checkpoint(str(path)).tokenizer_json())
        ids = tokenizer.encode("e\u0301").ids
        assert (ids == tokenizer.encode("\u00e9").ids) is (pre == "qwen2")


def test_llama3_adds_bos_unless_told_otherwise(make_gguf: Any) -> None:
    def adds_bos(**metadata: Any) -> bool:
        fields = {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
        return open_checkpoint(str(make_gguf("llama", metadata=fields))).special.add_bos

    assert adds_bos(pre="llama-bpe")
    assert not adds_bos(pre="llama-bpe", add_bos_token=False)
    assert not adds_bos(pre="llama-bpe", bos_token_id=None)
    assert not adds_bos(pre="smollm")
    assert adds_bos(pre="smollm", add_bos_token=True)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"model": "llama"}, ["tokenizer model 'llama'", "gpt2", "Hugging Face"]),
        ({"pre": "tekken"}, ["pre-tokenizer 'tekken'", "qwen2", "smollm"]),
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


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"model": None}, "model is missing"),
        ({"tokens": None}, "tokens is missing"),
        ({"merges": None}, "merges is missing"),
        ({"merges": ["he"]}, "merge 'he' is not a pair"),
        ({"merges": ["he "]}, "merge 'he ' is not a pair"),
        ({"merges": ["never seen"]}, "makes no tokenizer"),
        ({"token_type": [1, 2, 3]}, "one integer for each"),
        ({"tokens": ["a"] * 292}, "tokens 0 and 1 are both 'a'"),
        ({"tokens": [str(i) for i in range(301)], "token_type": None}, "301 tokens.*300 rows"),
        ({"eos_token_id": 292}, "eos_token_id is 292, the vocabulary has 292"),
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
