"""How GGUF files of each pre-tokenizer cut text, against llama.cpp."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from edgedec.export.checkpoints.gguf_pre_tokenizers import PRE_TOKENIZERS
from edgedec.export.checkpoints.gguf_tokenizer import build_tokenizer
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields

gguf = pytest.importorskip("gguf", reason="needs the dev extra")

TEXTS = (
    "I'll don't", "He'S WE'VE", "x=12345 7", "a1b23", "  two  ", "a\n\n b", "\r\n\tq", "a.b,c!!\n",
    "éÀ naïve", "日本12カナ", "한국 말", "HTTPSrv iOS", "$5+<b>^|`", "a/b //\n", "कि ।", "“q”—…",
    "_x __y", "1 000 ½", " \u00a0x", "😀 ok", "\n", "3.14e-5", "don’t", "ᄀx ㄅ", "1234567",
    "(a b).\n",
)  # fmt: skip
CUTS: list[dict[str, list[Any]]] = json.loads(
    Path(__file__).with_name("pre_tokenizer_cuts.json").read_text(encoding="utf-8")
)
"""Names that cut alike, and the characters of each piece of each text, by llama.cpp.

Null for texts of which llama.cpp only approximates the publishers' expression.
"""


def vocabulary() -> tuple[list[str], list[str]]:
    """Returns tokens and merges with which whatever is not cut becomes one token."""
    tokens = dict.fromkeys(sorted(ByteLevel.alphabet()))
    merges: dict[str, None] = {}
    for text in TEXTS:
        ((spelt, _),) = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        parts = [
            spelt[i : i + n] for n in range(2, len(spelt) + 1) for i in range(len(spelt) - n + 1)
        ]
        tokens |= dict.fromkeys(parts)
        merges |= {f"{part[:i]} {part[i:]}": None for part in parts for i in range(1, len(part))}
    return list(tokens), list(merges)


def vocabulary_metadata(pre: str) -> dict[str, Any]:
    """Returns the metadata of a GGUF file with `vocabulary`."""
    tokens, merges = vocabulary()
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.ones(len(tokens), np.int32),
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.add_bos_token": False,
    }


NAMES = [(name, group["cuts"]) for group in CUTS for name in group["names"]]


def test_every_name_is_tried() -> None:
    assert {name for name, _ in NAMES} == set(PRE_TOKENIZERS) - {"gpt2"}  # one of ours


@pytest.mark.parametrize(("name", "cuts"), NAMES)
def test_pieces_are_those_of_llama_cpp(name: str, cuts: list[list[int] | None]) -> None:
    metadata = vocabulary_metadata(name)
    fields = Fields(metadata, "test", CheckpointError)
    tokenizer = Tokenizer.from_str(build_tokenizer(fields, len(metadata["tokenizer.ggml.tokens"])))
    for text, cut in zip(TEXTS, cuts, strict=True):
        if cut is not None:
            assert list(map(len, tokenizer.encode(text).tokens)) == cut, text


@pytest.mark.models
@pytest.mark.parametrize("group", CUTS, ids=lambda group: group["names"][0])
def test_the_table_is_llama_cpps(group: dict[str, Any], tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="make test-models")
    for name in group["names"]:
        path = tmp_path / f"{name}.gguf"
        metadata = vocabulary_metadata(name)
        write_vocabulary(path, metadata)
        model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
        for text, cut in zip(TEXTS, group["cuts"], strict=True):
            ids = model.tokenize(text.encode(), add_bos=False)
            lengths = [len(metadata["tokenizer.ggml.tokens"][i]) for i in ids]
            assert cut is None or lengths == cut, (name, text)
        model.close()


def write_vocabulary(path: Path, metadata: dict[str, Any]) -> None:
    """Writes a GGUF file of which llama.cpp reads the vocabulary alone."""
    writer = gguf.GGUFWriter(path, "llama")
    for key in ("context_length", "embedding_length", "block_count", "feed_forward_length"):
        writer.add_uint32(f"llama.{key}", 32)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    for key, value in metadata.items():
        kinds = {
            bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string,
            list: writer.add_array,
        }  # fmt: skip
        value = value.tolist() if isinstance(value, np.ndarray) else value
        kinds[type(value)](key, value)
    n_tokens = len(metadata["tokenizer.ggml.tokens"])
    writer.add_tensor("token_embd.weight", np.zeros((n_tokens, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
