"""What the files beside a tokenizer.json change, against transformers reading the same folder."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceTexts
from edgedec.export.checkpoints.tokenizer_settings import TokenizerFiles
from edgedec.models.errors import CheckpointError
from edgedec.models.families import known_families
from edgedec.models.fields import Fields
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.tokenizer import Tokenizer as Codec

transformers = pytest.importorskip("transformers", reason="needs the dev extra")

SPECIALS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<unk>", "<pad>")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
TEMPLATE = (
    "".join(f"{r}={{{{ {r}_token }}}}/{{{{ {r}_token is defined }}}};" for r in ROLES)
    + "{{ additional_special_tokens | default([]) | join(',') }}"
    + "{{ image_token | default('-') }}{{ audio_token | default('-') }}"
)
TEXTS = (
    "a dog", " a dog", "dog<|im_end|>", "the <tool>dog", "x[X]y", "dog [X]", "x[x]y",
    "a <|im_start|> a", "",
)  # fmt: skip
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
TABLE = {**FLAGS, "__type": "AddedToken"}
STRIPS = {**TABLE, "lstrip": True}


def files_of(**settings: Any) -> dict[str, Any]:
    return {"tokenizer_config": {"tokenizer_class": FAST, **S, **settings}}


BYTES, SEQUENCE = processors.ByteLevel(trim_offsets=False), processors.Sequence
MORE: dict[str, tuple[Any, bool, dict[str, Any], dict[str, Any]]] = {
    "roles of one model": (None, False, {}, files_of(extra_special_tokens={
        "image_token": "<|im_start|>", "audio_token": {"content": "<|im_end|>", **TABLE}})),
    "a role of one model that no tokenizer has": (None, False, {}, files_of(
        extra_special_tokens={"image_token": "[X]"})),
    "no roles of one model": (None, False, {}, files_of(extra_special_tokens={})),
    "additional tokens as tables": (None, False, {}, files_of(additional_special_tokens=[
        {"content": "<|im_start|>", **STRIPS}, "<|im_end|>"])),
    "an ordinary token that a list makes special": (None, False, {}, files_of(
        additional_special_tokens=[{"content": "<tool>", **STRIPS}])),
    "an additional token that is new": (None, False, {}, files_of(
        additional_special_tokens=[{"content": "[X]", **STRIPS}, "[Y]"])),
    "additional tokens beside a list": (None, False, {}, files_of(
        additional_special_tokens=[{"content": "<|im_end|>", **STRIPS}],
        added_tokens_decoder={"3": {"content": "<|im_end|>", **FLAGS, "special": True}})),
    "a token found in normalised text, too": (None, False, {}, files_of(
        additional_special_tokens=[{"content": "<|im_end|>", **TABLE, "normalized": True}])),
    "a role as a table keeps the flags of the tokenizer": (None, False, {}, files_of(
        eos_token={"content": "<|im_end|>", **STRIPS})),
    "a role as a table that no tokenizer has": (None, False, {}, files_of(
        mask_token={"content": "[X]", **STRIPS})),
    "a role in the map as a table that no tokenizer has": (None, False, {}, {
        **files_of(), "special_tokens_map": {"pad_token": {"content": "[X]", **STRIPS}}}),
    "a null add_bos_token": (None, False, {}, {"tokenizer_config": {
        "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": None, **S}}),
    "llama with add_eos": (opening("<s>"), False, {}, {"tokenizer_config": {
        "tokenizer_class": "LlamaTokenizerFast", "add_eos_token": False, **S}}),
    "bytes alone behind": (BYTES, False, {}, files_of()),
    "a sequence that opens": (SEQUENCE([BYTES, opening("<s>")]), False, {}, files_of()),
    "a sequence that opens twice": (
        SEQUENCE([BYTES, opening("<s>", "<|im_start|>")]), False, {}, files_of()),
    "a sequence that opens, then bytes": (
        SEQUENCE([opening("<s>"), BYTES]), False, {}, files_of()),
    "a sequence under a class that opens by itself": (
        SEQUENCE([BYTES, opening("<|im_start|>")]), False, {}, {"tokenizer_config": {
            "tokenizer_class": "LlamaTokenizerFast", **S}}),
    "two open, and the class is Qwen's": (
        opening("<|im_start|>", "<s>"), False, {"model_type": "qwen3"},
        {"tokenizer_config": {**S, "unk_token": "<unk>", "pad_token": "<pad>"}}),
    "the config has other ids": (
        opening("<s>"), False, {"bos_token_id": 3, "eos_token_id": 2, "pad_token_id": 1},
        files_of(pad_token="<pad>")),
    "the config's ids are out of range": (
        None, False, {"bos_token_id": -1, "eos_token_id": 9999}, files_of()),
    "no file but the map": (None, False, {"model_type": "smollm3"}, {
        "special_tokens_map": {**S, "unk_token": {"content": "<unk>", **FLAGS}}}),
    "a map with a null": (None, False, {}, {
        **files_of(pad_token="<pad>"), "special_tokens_map": {"pad_token": None}}),
    "pad is eos": (None, False, {}, files_of(pad_token="</s>", unk_token="</s>")),
    "bos is eos": (opening("</s>"), False, {}, files_of(bos_token="</s>")),
    "gemma's names that the tokenizer has not": (None, False, {}, {"tokenizer_config": {
        "tokenizer_class": "GemmaTokenizerFast", **S, "unk_token": "<unk>", "pad_token": "<pad>",
        "add_bos_token": False}}),
    "cohere's class": (None, False, {}, {"tokenizer_config": {
        "tokenizer_class": "CohereTokenizerFast", **S, "unk_token": "<unk>"}}),
    "the class stands in the model's config": (
        None, False, {"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_config": S}),
    "gpt-neox with add_bos": (None, False, {}, {"tokenizer_config": {
        "tokenizer_class": "GPTNeoXTokenizerFast", "add_bos_token": True, "unk_token": "<unk>",
        **S}}),
    "a token that two lists name": (None, False, {}, files_of(
        additional_special_tokens=["[X]"],
        added_tokens_decoder={"301": {"content": "[X]", **FLAGS, "lstrip": True,
                                      "special": False}})),
    "a blank of the file under llama's class": (None, True, {}, {"tokenizer_config": {
        "tokenizer_class": "LlamaTokenizerFast", **S}}),
    "a blank of the file and a null": (None, True, {}, files_of(add_prefix_space=None)),
    "a role as a table beside a list without it": (None, False, {}, files_of(
        eos_token={"content": "<|im_start|>", **STRIPS},
        added_tokens_decoder={"0": {"content": "<s>", **FLAGS, "special": True}})),
    "a whole word in normalised text, too": (None, False, {}, files_of(added_tokens_decoder={
        "3": {"content": "<|im_end|>", **FLAGS, "special": True, "normalized": True,
              "single_word": True}})),
    "special in the tokenizer, ordinary in a list": (None, False, {}, files_of(
        added_tokens_decoder={"3": {"content": "<|im_end|>", **FLAGS, "special": False}})),
    "an ordinary token that becomes special in normalised text": (None, False, {}, files_of(
        added_tokens_decoder={"300": {"content": "<tool>", **FLAGS, "special": True,
                                      "normalized": True}})),
    "gpt-neox with a null bos": (opening("<s>"), False, {}, {"tokenizer_config": {
        "tokenizer_class": "GPTNeoXTokenizerFast", "bos_token": None, "eos_token": "</s>",
        "unk_token": "<unk>"}}),
}  # fmt: skip
CASES |= MORE


def padded() -> Tokenizer:
    tokenizer = make_tokenizer()
    tokenizer.enable_padding(pad_id=5, pad_token="<pad>")
    return tokenizer


def lower() -> Tokenizer:
    tokenizer = make_tokenizer()
    tokenizer.normalizer = normalizers.Lowercase()
    return tokenizer


@pytest.mark.parametrize("name", CASES)
def test_as_transformers(make_folder: Any, name: str) -> None:
    post, prefix_space, config, files = CASES[name]
    compare(make_folder(make_tokenizer(post, prefix_space), config, **files))


def test_padding_names_a_token(make_folder: Any) -> None:
    compare(make_folder(padded(), {}, **files_of()))


def test_added_tokens_are_found_in_normalised_text(make_folder: Any) -> None:
    compare(make_folder(lower(), {}, **files_of(), added_tokens={"[X]": 301}))


@pytest.mark.parametrize("in_file", list(product((False, True), repeat=2)))
@pytest.mark.parametrize("beside", list(product((False, True), repeat=2)))
def test_a_token_is_found_in_the_text_that_the_file_names(
    make_folder: Any, in_file: tuple[bool, bool], beside: tuple[bool, bool]
) -> None:
    """Where special and normalized differ between the file and the list beside it."""
    tokenizer = make_tokenizer()
    tokenizer.normalizer = normalizers.Prepend("_")
    tokenizer.add_tokens([AddedToken("[X]", special=in_file[0], normalized=in_file[1])])
    token = {"content": "[X]", **FLAGS, "special": beside[0], "normalized": beside[1]}
    decoder = {str(tokenizer.token_to_id("[X]")): {**token, "lstrip": True}}
    compare(make_folder(tokenizer, {}, **files_of(added_tokens_decoder=decoder)))


@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("beside", [False, True])
def test_the_flags_beside_a_file_of_transformers_5_decide(
    make_folder: Any, in_file: bool, beside: bool
) -> None:
    """As tokenizers 0.23 reads them, which transformers 5.24 needs."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken("[X]", normalized=in_file)])
    token_id = tokenizer.token_to_id("[X]")
    decoder = {str(token_id): {"content": "[X]", **FLAGS, "special": False, "normalized": beside}}
    config = {"tokenizer_class": "TokenizersBackend", "backend": "tokenizers"}
    files = {"tokenizer_config": {**config, "added_tokens_decoder": decoder}}
    document = json.loads(HuggingFaceTexts(make_folder(tokenizer, {}, **files)).tokenizer_json())
    (token,) = (t for t in document["added_tokens"] if t["id"] == token_id)
    assert token["normalized"] is beside


@pytest.mark.parametrize("stated", [{}, *({"add_prefix_space": x} for x in (None, True, False))])
def test_a_blank_of_a_file_of_transformers_5(make_folder: Any, stated: dict[str, Any]) -> None:
    """As transformers 5.24 reads it: what the file says of a blank before texts holds."""
    config = {"tokenizer_class": "TokenizersBackend", **S, **stated}
    folder = make_folder(make_tokenizer(prefix_space=True), {}, tokenizer_config=config)
    ids = Tokenizer.from_str(HuggingFaceTexts(folder).tokenizer_json()).encode("dog").ids
    assert ids == make_tokenizer(prefix_space=True).encode("dog").ids


OF_VERSION_5: dict[str, tuple[Any, dict[str, Any], list[int]]] = {
    # name: post-processor, tokenizer_config.json, the opening of 5.24
    "Llama's class adds nothing": (None, {"tokenizer_class": "LlamaTokenizer", **S}, []),
    "the file's opening": (opening("<s>"), {"tokenizer_class": "LlamaTokenizer", **S}, [0]),
    "one that is not bos": (opening("<unk>"), {"tokenizer_class": "LlamaTokenizer"}, [4]),
    "stated": (None, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, **S}, [0]),
    "an end is stated": (
        opening("<s>"), {"tokenizer_class": "LlamaTokenizer", "add_eos_token": False}, []
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_VERSION_5)
def test_files_of_transformers_5_open_as_it_opens_them(make_folder: Any, name: str) -> None:
    post, config, ids = OF_VERSION_5[name]
    config = {"backend": "tokenizers", **config}
    folder = make_folder(make_tokenizer(post), {}, tokenizer_config=config)
    assert list(HuggingFaceTexts(folder).special.opening_ids) == ids


@pytest.mark.parametrize(
    ("config", "pad"),
    [
        ({"tokenizer_class": "Qwen2Tokenizer", "bos_token": None}, None),
        ({"tokenizer_class": "GPT2Tokenizer", "backend": "tokenizers"}, None),
        ({"tokenizer_class": FAST, "pad_token": None}, None),
        ({"tokenizer_class": FAST}, "<pad>"),
    ],
)
def test_padding_names_a_token_where_nothing_else_does(
    make_folder: Any, config: dict[str, Any], pad: str | None
) -> None:
    """As transformers 4.57 and 5.24 read it. Qwen's class names a token that is not there."""
    folder = make_folder(padded(), {}, tokenizer_config=config)
    assert HuggingFaceTexts(folder).special.variables.get("pad_token") == pad


def test_the_class_of_qwen2_holds_in_files_of_transformers_5(make_folder: Any) -> None:
    def split(prefix_space: bool) -> Tokenizer:
        made = make_tokenizer(prefix_space=prefix_space)
        digits = pre_tokenizers.Digits(individual_digits=True)
        made.pre_tokenizer = pre_tokenizers.Sequence([digits, made.pre_tokenizer])
        return made

    config = {"backend": "tokenizers", "tokenizer_class": "TokenizersBackend",
              "add_prefix_space": True}  # fmt: skip
    folder = make_folder(split(prefix_space=False), {"model_type": "qwen2"},
                         tokenizer_config=config)  # fmt: skip
    ours = Tokenizer.from_str(HuggingFaceTexts(folder).tokenizer_json())
    assert ours.encode("dog 1").ids == split(prefix_space=True).encode("dog 1").ids
    assert ours.encode("dog 1").ids != split(prefix_space=False).encode("dog 1").ids


def test_additional_tokens_are_added_before_those_of_a_model(make_folder: Any) -> None:
    config = {"tokenizer_class": FAST, "extra_special_tokens": {"image_token": "<image>"},
              "additional_special_tokens": ["<more>"]}  # fmt: skip
    compare(make_folder(make_tokenizer(), {}, tokenizer_config=config))
    folder = make_folder(make_tokenizer(), {}, tokenizer_config=config)
    ours = Tokenizer.from_str(HuggingFaceTexts(folder).tokenizer_json())
    assert ours.token_to_id("<more>") < ours.token_to_id("<image>")


def compare(folder: Path) -> None:
    """Compares ids, the text of special tokens, and what templates may name."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = HuggingFaceTexts(folder)
    tokenizer, special = Tokenizer.from_str(ours.tokenizer_json()), ours.special
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert [*special.opening_ids, *ids] == theirs(text)["input_ids"], text
    (folder / "ours.json").write_text(ours.tokenizer_json())
    some = [*range(6), *theirs("a <tool>dog", add_special_tokens=False)["input_ids"]]
    shown = theirs.decode(some, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert Codec.load(folder / "ours.json").decode(some) == shown
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


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("post", [None, opening("<s>"), opening("<s>", behind=("</s>",))])
def test_padding_and_truncation_of_a_file_are_no_part_of_a_text(
    make_folder: Any, direction: str, post: Any
) -> None:
    tokenizer = make_tokenizer(post)
    plain = HuggingFaceTexts(make_folder(tokenizer, {})).special
    tokenizer.enable_padding(direction=direction, length=16, pad_id=5, pad_token="<pad>")
    tokenizer.enable_truncation(12)
    special = HuggingFaceTexts(make_folder(tokenizer, {})).special
    assert special.opening_ids == plain.opening_ids
    assert special.closing_ids == plain.closing_ids


@pytest.mark.parametrize("form", ["normaliser", "metaspace", "sequence"])
@pytest.mark.parametrize("name", ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer"])
def test_a_class_of_llama_without_a_blank_begins_with_none(
    make_folder: Any, form: str, name: str
) -> None:
    def made(prepends: bool) -> Tokenizer:
        vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "\u2581": 3, "a": 4, "b": 5}
        tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", fuse_unk=True))
        blank = normalizers.Replace(" ", "\u2581")
        scheme = "first" if prepends else "never"
        metaspace = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        if form == "normaliser":
            parts = [normalizers.Prepend("\u2581")] if prepends else []
            tokenizer.normalizer = normalizers.Sequence([*parts, blank])
        elif form == "sequence":
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace])
        else:
            tokenizer.pre_tokenizer = metaspace
        strip = [decoders.Strip(" ", 1, 0)] if prepends else []
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.Fuse(), *strip]
        )
        tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
        return tokenizer

    settings = {"tokenizer_class": name, "add_prefix_space": False, "legacy": False}
    folder = make_folder(made(True), {}, tokenizer_config=settings)
    codec = Tokenizer.from_str(HuggingFaceTexts(folder).tokenizer_json())
    for text in ("a b", " a b", "a</s>b", "</s> a", "b"):
        ids = codec.encode(text, add_special_tokens=False).ids
        assert ids == made(False).encode(text, add_special_tokens=False).ids
        assert codec.decode(ids) == made(False).decode(ids)
