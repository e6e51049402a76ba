"""What transformers 5.24 reads otherwise in files of transformers 4, as its code says.

`tools/fuzz/tokenizer_settings.py` compares drawn files with what both versions give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts

SPECIALS = ("<unk>", "<s>", "</s>", "<pad>", "<bos>", "<eos>", "<|endoftext|>")
METASPACE = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
PREPEND = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
OPENING = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])


def write(folder: Path, family: str, settings: dict[str, Any], **parts: Any) -> HuggingFaceTexts:
    tokens = {token: i for i, token in enumerate(SPECIALS)}
    made = Tokenizer(models.BPE(tokens | {"a": 7, "\u2581": 8}, [], unk_token="<unk>"))
    made.add_special_tokens(list(SPECIALS))
    for name, part in parts.items():
        setattr(made, name, part)
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    config = {"model_type": family, "vocab_size": 20}
    (folder / "config.json").write_text(json.dumps(config))
    return HuggingFaceTexts(folder)


LLAMA = {"tokenizer_class": "LlamaTokenizer"}
OPENED = {"post_processor": OPENING}


@pytest.mark.parametrize(
    ("family", "settings", "parts", "expected"),
    [
        ("llama", LLAMA, {"pre_tokenizer": METASPACE, **OPENED}, None),
        ("llama", LLAMA, {"normalizer": PREPEND, **OPENED}, "normalizer, pre_tokenizer"),
        ("llama", {**LLAMA, "legacy": True}, {"pre_tokenizer": METASPACE, **OPENED},
         "pre_tokenizer"),
        ("llama", LLAMA, {"pre_tokenizer": METASPACE}, "add_bos_token"),
        ("llama", {"tokenizer_class": "LlamaTokenizer"}, {"pre_tokenizer": BYTES, **OPENED},
         "roles of special tokens"),
        ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>"},
         {"pre_tokenizer": BYTES, **OPENED}, None),
        ("llama", {"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": True},
         {"pre_tokenizer": BYTES, **OPENED}, "add_prefix_space"),
        ("gpt2", {"tokenizer_class": "GPT2Tokenizer"}, {"pre_tokenizer": BYTES}, None),
        ("gpt2", {"tokenizer_class": "GPT2Tokenizer", "additional_special_tokens": ["<x>"],
                  "extra_special_tokens": {"image_token": "<y>"}}, {"pre_tokenizer": BYTES},
         "additional_special_tokens"),
        ("llama", {**LLAMA, "backend": "tokenizers"}, {"normalizer": PREPEND}, None),
    ],
)  # fmt: skip
def test_named(
    tmp_path: Path,
    family: str,
    settings: dict[str, Any],
    parts: dict[str, Any],
    expected: str | None,
) -> None:
    lines = write(tmp_path, family, settings, **parts).unapplied
    if expected is None:
        assert lines == ()
    else:
        (line,) = lines
        assert f"tokenizer.json: transformers 5 reads this otherwise: {expected}. " in line
        assert "\n" not in line
