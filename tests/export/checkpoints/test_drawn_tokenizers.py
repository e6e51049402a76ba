"""Drawn settings of tokenizers: texts have the ids that transformers gives them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
from edgedec.runtime.text.tokenizer import Tokenizer as Codec

transformers = pytest.importorskip("transformers", reason="needs the dev extra")

SPECIALS = ("<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>")
TEXTS = (
    "a dog", " a dog", "<s>dog</s> the", "the <tool>dog", "x[X]y", "dog [X] hello", "</s>hello",
    "<s>[X] <|im_start|>user\nhello<|im_end|>\n",
)  # fmt: skip


def trained(is_bytes: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token=None if is_bytes else "<unk>", fuse_unk=True))
    alphabet: list[str] = []
    if is_bytes:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIALS), show_progress=False,
        initial_alphabet=alphabet,
    )  # fmt: skip
    tokenizer.train_from_iterator(["the quick dog and a dog [X] hello user word "] * 3, trainer)
    return tokenizer


def drawn(seed: int) -> tuple[Tokenizer, dict[str, Any]]:
    draw = random.Random(seed)
    is_bytes = draw.random() < 0.5
    tokenizer = trained(is_bytes)
    if not is_bytes and (scheme := draw.choice(["first", "always", "never", ""])):
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    elif not is_bytes:
        tokenizer.pre_tokenizer = None
        parts = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
        tokenizer.normalizer = normalizers.Sequence(parts)
    if draw.random() < 0.4:
        length, side = draw.choice([None, 8, 16]), draw.choice(["left", "right"])
        tokenizer.enable_padding(direction=side, length=length, pad_id=3, pad_token="<pad>")
    if draw.random() < 0.3:
        tokenizer.enable_truncation(draw.choice([4, 64]))
    if single := draw.choice(["", "<s> $A", "$A </s>", "<s> $A </s>"]):
        tokenizer.post_processor = processors.TemplateProcessing(
            single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    for content in ("<tool>", "[X]"):
        flags = ("lstrip", "rstrip", "normalized", "single_word", "special")
        if draw.random() < 0.4:
            token = AddedToken(content, **{flag: draw.random() < 0.3 for flag in flags})
            tokenizer.add_tokens([token])
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    # Of `add_prefix_space` transformers 4 and 5 say different things.
    if draw.random() < 0.25:
        settings["pad_token"] = "<pad>"
    return tokenizer, settings


@pytest.mark.parametrize("seed", range(60))
def test_drawn_settings_are_read_as_by_transformers(tmp_path: Path, seed: int) -> None:
    tokenizer, settings = drawn(seed)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": 400}))
    oracle = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    ours = HuggingFaceTexts(tmp_path)
    codec = Codec(Tokenizer.from_str(ours.tokenizer_json()))

    def expected(text: str, **more: Any) -> list[int]:
        return list(oracle(text, padding=False, truncation=False, **more).input_ids)

    for text in TEXTS:
        assert codec.encode_rendered(text, {}) == expected(text, add_special_tokens=False)
    plain, whole = expected("dog", add_special_tokens=False), expected("dog")
    assert [*ours.special.opening_ids, *plain] == whole[: len(whole) - (whole[-1] == 2)]
