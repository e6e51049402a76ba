"""What the files beside a tokenizer.json change, against transformers reading the same folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
from edgedec.export.checkpoints.tokenizer_settings import TokenizerFiles
from edgedec.models.errors import CheckpointError
from edgedec.models.families import known_families
from edgedec.models.fields import Fields
from edgedec.runtime.text.chat_template import ChatTemplate

transformers = pytest.importorskip("transformers", reason="needs the dev extra")

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unk>", "<pad>")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
TEMPLATE = (
    "".join(f"{r}={{{{ {r}_token }}}}/{{{{ {r}_token is defined }}}};" for r in ROLES)
    + "{{ additional_special_tokens | default([]) | join(',') }}"
)
TEXTS = ("a dog", " a dog", "dog<|im_end|>", "the <tool>dog", "x[X]y", "")
MESSAGES = [{"role": "user", "content": "a"}]
FAST = "PreTrainedTokenizerFast"


def opening(*tokens: str, behind: tuple[str, ...] = ()) -> Any:
    ids = [(token, SPECIALS.index(token)) for token in (*tokens, *behind)]
    single = " ".join([*tokens, "$A", *behind])
    return processors.TemplateProcessing(single=single, special_tokens=ids)


def make_tokenizer(post: Any = None, prefix_space: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=list(SPECIALS), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(["the quick dog and a dog [X] "] * 3, trainer)
    tokenizer.add_tokens([AddedToken("<tool>", special=False, normalized=False)])
    if post is not None:
        tokenizer.post_processor = post
    return tokenizer


@pytest.fixture
def make_folder(tmp_path: Path) -> Any:
    def make(tokenizer: Tokenizer, config: dict[str, Any], **files: Any) -> Path:
        size = 400
        (tmp_path / "config.json").write_text(
            json.dumps({"model_type": "llama", "vocab_size": size, **config})
        )
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return tmp_path

    return make


S = {"bos_token": "<s>", "eos_token": "</s>"}
FLAGS = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
CASES: dict[str, tuple[Any, bool, dict[str, Any], dict[str, Any]]] = {
    # name: post-processor, prefix space of the file, config.json, other files
    "the report": (
        opening("<s>"),
        False,
        {"bos_token_id": 2},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}},
    ),
    "only the config has bos": (
        None,
        False,
        {"bos_token_id": 0},
        {"tokenizer_config": {"tokenizer_class": FAST}},
    ),
    "a post-processor and nothing stated": (
        opening("<s>"),
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST}},
    ),
    "a post-processor and no file": (opening("<s>"), False, {"model_type": "smollm3"}, {}),
    "two tokens open": (
        opening("<s>", "<|im_start|>"),
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}},
    ),
    "one opens that is not bos": (
        opening("<|im_start|>"),
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}},
    ),
    "bos stated, none opens": (
        None,
        False,
        {"bos_token_id": 0},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}},
    ),
    "llama opens by itself": (
        None,
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", **S}},
    ),
    "llama without add_bos": (
        opening("<s>"),
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": "LlamaTokenizerFast",
                "add_bos_token": False,
                **S,
            }
        },
    ),
    "llama with another bos": (
        opening("<s>"),
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<|im_start|>"}},
    ),
    "no class stated, by the family": (
        None,
        False,
        {"model_type": "mistral"},
        {"tokenizer_config": {}},
    ),
    "gemma's class": (
        None,
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": "GemmaTokenizer",
                **S,
                "unk_token": "<unk>",
                "pad_token": "<pad>",
            }
        },
    ),
    "qwen2 with a null bos": (
        None,
        False,
        {"bos_token_id": 2},
        {
            "tokenizer_config": {
                "tokenizer_class": "Qwen2Tokenizer",
                "bos_token": None,
                "eos_token": "<|im_end|>",
                "pad_token": "</s>",
                "unk_token": None,
                "add_bos_token": False,
            }
        },
    ),
    "a class nobody overrides and add_bos_token": (
        opening("<s>"),
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, "add_bos_token": False, **S}},
    ),
    "eos is not the first stop token": (
        None,
        False,
        {"eos_token_id": [3, 1]},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}},
    ),
    "roles as tables": (
        opening("<s>"),
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": FAST,
                "bos_token": {"content": "<s>", **FLAGS, "__type": "AddedToken"},
                "pad_token": "<pad>",
                "unk_token": "<unk>",
            }
        },
    ),
    "roles in the map": (
        opening("<s>"),
        False,
        {},
        {
            "tokenizer_config": {"tokenizer_class": FAST},
            "special_tokens_map": {**S, "pad_token": "<pad>"},
        },
    ),
    "the map wins over the older file": (
        None,
        False,
        {},
        {
            "tokenizer_config": {"tokenizer_class": FAST, "eos_token": "</s>"},
            "special_tokens_map": {"eos_token": {"content": "<|im_end|>", **FLAGS}},
        },
    ),
    "the map does not count beside a list of added tokens": (
        None,
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": FAST,
                "eos_token": "</s>",
                "added_tokens_decoder": {"1": {"content": "</s>", **FLAGS, "special": True}},
            },
            "special_tokens_map": {"eos_token": "<|im_end|>"},
        },
    ),
    "additional special tokens": (
        None,
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": FAST,
                **S,
                "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
            }
        },
    ),
    "a token only in added_tokens_decoder": (
        None,
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": FAST,
                **S,
                "added_tokens_decoder": {"301": {"content": "[X]", **FLAGS, "special": True}},
            }
        },
    ),
    "an ordinary token only in added_tokens_decoder": (
        None,
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": FAST,
                **S,
                "added_tokens_decoder": {"301": {"content": "[X]", **FLAGS, "special": False}},
            }
        },
    ),
    "flags that differ from the tokenizer's": (
        None,
        False,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": FAST,
                **S,
                "added_tokens_decoder": {
                    "300": {"content": "<tool>", **FLAGS, "lstrip": True, "special": True}
                },
            }
        },
    ),
    "added_tokens.json": (
        None,
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}, "added_tokens": {"[X]": 301}},
    ),
    "a role that no tokenizer has": (
        None,
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, **S, "mask_token": "[X]"}},
    ),
    "a prefix space in the file alone": (
        None,
        True,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, **S}},
    ),
    "a prefix space stated": (
        None,
        False,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, "add_prefix_space": True, **S}},
    ),
    "a prefix space in both": (
        None,
        True,
        {},
        {
            "tokenizer_config": {
                "tokenizer_class": "GPT2Tokenizer",
                "add_prefix_space": True,
                "unk_token": "<unk>",
                **S,
            }
        },
    ),
    "a prefix space taken away": (
        None,
        True,
        {},
        {"tokenizer_config": {"tokenizer_class": FAST, "add_prefix_space": False, **S}},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_as_transformers(make_folder: Any, name: str) -> None:
    post, prefix_space, config, files = CASES[name]
    folder = make_folder(make_tokenizer(post, prefix_space), config, **files)
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = HuggingFaceTexts(folder)
    tokenizer, special = Tokenizer.from_str(ours.tokenizer_json()), ours.special
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert [*special.opening_ids, *ids] == theirs(text)["input_ids"], text
    expected = theirs.apply_chat_template(MESSAGES, chat_template=TEMPLATE, tokenize=False)
    assert ChatTemplate(TEMPLATE, special.variables).render(MESSAGES) == expected


def test_what_follows_a_text_is_not_put_behind_a_prompt(make_folder: Any) -> None:
    post = opening("<s>", behind=("</s>",))
    folder = make_folder(make_tokenizer(post), {}, tokenizer_config={"tokenizer_class": FAST, **S})
    assert HuggingFaceTexts(folder).special.opening_ids == (0,)


def test_a_role_outside_the_embedding_is_left_out(make_folder: Any) -> None:
    config = {"tokenizer_class": FAST, **S, "mask_token": "[MASK]"}
    tokenizer = make_tokenizer()
    size = {"vocab_size": tokenizer.get_vocab_size()}
    folder = make_folder(tokenizer, size, tokenizer_config=config)
    ours = HuggingFaceTexts(folder)
    assert ours.special == SpecialTokens((1,), (), S)
    assert "[MASK]" not in ours.tokenizer_json()


@pytest.mark.parametrize("family", known_families())
def test_the_class_of_a_family_where_no_file_names_one(family: str) -> None:
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    slow, fast = TOKENIZER_MAPPING_NAMES.get(family) or (None, None)
    if (theirs := fast or slow) is None:
        pytest.skip("transformers has no class for it")
    named, unnamed = (
        TokenizerFiles(*(Fields(values, "test", CheckpointError) for values in files))
        for files in (
            ({"tokenizer_class": theirs}, {}, {}, {"model_type": family}),
            ({}, {}, {}, {"model_type": family}),
        )
    )
    assert unnamed.tokenizer_class == named.tokenizer_class
