"""Tokenizers of GGUF metadata in the format of the ``tokenizers`` library.

The document is written directly: saving through the library prints to standard output when ids
have gaps. It is read back with the library before anyone relies on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.checkpoints.sentencepiece_tokenizer import added_token, sentencepiece_document
from edgedec.export.checkpoints.sentencepiece_vocabulary import (
    CONTROL,
    NORMAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    vocabulary_of_gguf,
)
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields

TURN_ENDS = (
    "<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>",
    "<end_of_turn>",
)  # fmt: skip
"""Control tokens that end a text or a turn wherever they exist.

Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (end-of-generation tokens by text, MIT).
"""

_QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased_split(contractions: str = "", digits: str = "") -> str:
    """Returns the expression of vocabularies that cut words where case changes.

    Source: tokenizer.json of microsoft/Phi-4-mini-instruct and mistralai/Mistral-Nemo-Base-2407.
    """
    before = r"[^\r\n\p{L}\p{N}]?"
    words = (f"{before}[{_UPPER}]*[{_LOWER}]+", f"{before}[{_UPPER}]+[{_LOWER}]*")
    others = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    parts = [f"{word}{contractions}" for word in words]
    return "|".join([*parts, rf"\p{{N}}{digits}", others])


_QWEN35_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3_SPLIT = _QWEN2_SPLIT.replace(r"|\p{N}|", r"|\p{N}{1,3}|")


@dataclass(frozen=True)
class _Recipe:
    """How a family cuts text before merging.

    split: pattern whose matches are the pieces; empty for GPT-2's own.
    splits_digits: every digit is a piece.
    composes: text is put into Unicode form NFC first.
    takes_whole_pieces: a piece that is a token is taken without merging.
    adds_bos: what holds where ``tokenizer.ggml.add_bos_token`` is absent.

    Sources: tokenizer.json of openai-community/gpt2, HuggingFaceTB/SmolLM2-135M-Instruct,
    Qwen/Qwen2.5-Coder-0.5B-Instruct and meta-llama/Meta-Llama-3-8B.
    """

    split: str = ""
    splits_digits: bool = False
    composes: bool = False
    takes_whole_pieces: bool = False
    adds_bos: bool = False


_GPT2, _DIGITS = _Recipe(), _Recipe(splits_digits=True)
_LLAMA3 = _Recipe(_LLAMA3_SPLIT, takes_whole_pieces=True, adds_bos=True)
_DBRX, _PLAIN_QWEN2 = _Recipe(_LLAMA3_SPLIT), _Recipe(_QWEN2_SPLIT)
_GPT4O = _Recipe(_cased_split(contractions="(?i:'s|'t|'re|'ve|'m|'ll|'d)?", digits="{1,3}"))
_TEKKEN = _Recipe(_cased_split(), takes_whole_pieces=True, adds_bos=True)
RECIPES: dict[str, _Recipe] = {
    **dict.fromkeys(
        ("default", "gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4",
         "granite-docling", "gigachat", "a.x-4.0", "mellum"), _GPT2
    ),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
         "mellum2"), _DIGITS
    ),
    **dict.fromkeys(
        ("llama-bpe", "llama-v3", "llama3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        _LLAMA3,
    ),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _DBRX),
    "qwen2": _Recipe(_QWEN2_SPLIT, composes=True),
    "qwen35": _Recipe(_QWEN35_SPLIT, composes=True),
    **dict.fromkeys(
        ("deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open",
         "grok-2"), _PLAIN_QWEN2
    ),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "tekken": _TEKKEN,
}  # fmt: skip
"""Known values of ``tokenizer.ggml.pre``.

Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT): which names mean the same expression.
"""

SENTENCEPIECE = {"llama": False, "t5": True}
"""Values of ``tokenizer.ggml.model`` that mean SentencePiece -> whether as a unigram model."""


_ROLES = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator",
    "pad_token": "padding", "cls_token": "cls", "mask_token": "mask",
}  # fmt: skip
"""What chat templates name -> what ``tokenizer.ggml.*_token_id`` does, misspelt as it is."""

_SPM_IDS = {"bos": 1, "eos": 2, "unknown": 0}
"""What SentencePiece files mean that state no id, if there is such a token.

Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT).
"""


def build_tokenizer(fields: Fields, vocab_size: int) -> str:
    """Returns the text of a ``tokenizer.json``.

    Args:
        fields: GGUF metadata.
        vocab_size: rows of the embedding, the upper bound of token ids.

    Raises:
        CheckpointError: the vocabulary contradicts itself.
        UnsupportedModelError: no such tokenizer model or pre-tokenizer is known.
    """
    tokens, kinds = _read_tokens(fields, vocab_size)
    model = fields.text("tokenizer.ggml.model")
    if model in SENTENCEPIECE:
        vocabulary = vocabulary_of_gguf(fields, tokens, kinds, is_unigram=SENTENCEPIECE[model])
        return checked_text(sentencepiece_document(vocabulary), fields.origin)
    recipe = _find_recipe(fields)
    merges = [_read_merge(fields, merge) for merge in _texts(fields, "tokenizer.ggml.merges")]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, kinds),
        "normalizer": {"type": "NFC"} if recipe.composes else None,
        "pre_tokenizer": _pre_tokenizer(recipe),
        "post_processor": None,
        "decoder": _byte_level(uses_gpt2_split=True),
        "model": _bpe(_vocabulary(fields, tokens, kinds), merges, recipe),
    }
    return checked_text(document, fields.origin)


def checked_text(document: Mapping[str, Any], origin: str) -> str:
    """Returns the text of a ``tokenizer.json``.

    Raises:
        CheckpointError: the library makes no tokenizer of it.
    """
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    try:
        Tokenizer.from_str(text)
    except BaseException as error:  # the library raises bare Exception, and panics
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise CheckpointError(
            f"{origin}: the vocabulary makes no tokenizer: {_first_line(error)}"
        ) from None
    return text


def read_special(fields: Fields, vocab_size: int) -> SpecialTokens:
    """Returns the tokens that begin and end texts, from GGUF metadata."""
    tokens, kinds = _read_tokens(fields, vocab_size)
    is_spm = SENTENCEPIECE.get(fields.text("tokenizer.ggml.model")) is False

    def token_id(key: str) -> int | None:
        value = fields.integer(f"tokenizer.ggml.{key}_token_id", -1)
        if 0 <= value < len(tokens):
            return value
        # As llama.cpp does: an id that is no token's counts as absent.
        usual = _SPM_IDS.get(key, -1) if is_spm else -1
        is_usual = 0 <= usual < len(tokens) and kinds[usual] in (CONTROL, UNKNOWN)
        return usual if is_usual else None

    stated = [token_id("eos"), token_id("eot"), token_id("eom")]
    by_text = [
        i
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind == CONTROL and token in TURN_ENDS
    ]
    eos_ids = tuple(dict.fromkeys(i for i in stated + by_text if i is not None))
    bos_id = token_id("bos")
    adds_bos = fields.flag("tokenizer.ggml.add_bos_token", _adds_bos(fields))
    ids = {role: token_id(key) for role, key in _ROLES.items()}
    variables = {role: tokens[i] for role, i in ids.items() if i is not None}
    return SpecialTokens(eos_ids, (bos_id,) if adds_bos and bos_id is not None else (), variables)


def _adds_bos(fields: Fields) -> bool:
    """Whether texts begin with a token of their own where the file does not say."""
    model = fields.text("tokenizer.ggml.model")
    # Of the two SentencePiece models only the BPE one does.
    return not SENTENCEPIECE[model] if model in SENTENCEPIECE else _find_recipe(fields).adds_bos


def _find_recipe(fields: Fields) -> _Recipe:
    model = fields.text("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModelError(
            f"{fields.origin}: tokenizer model {model[:40]!r} is not supported; known: gpt2 "
            f"(byte-level BPE), llama and t5 (SentencePiece). Export from the Hugging Face "
            f"directory instead"
        )
    pre = fields.text("tokenizer.ggml.pre", "default")
    if pre not in RECIPES:
        raise UnsupportedModelError(
            f"{fields.origin}: pre-tokenizer {pre[:40]!r} is not supported; known: "
            f"{', '.join(RECIPES)}. Export from the Hugging Face directory instead"
        )
    return RECIPES[pre]


def _texts(fields: Fields, key: str) -> list[str]:
    value = fields.get(key)
    if not isinstance(value, list) or not value:
        raise CheckpointError(f"{fields.origin}: {key} is missing, expected a list of strings")
    return value


def _read_tokens(fields: Fields, vocab_size: int) -> tuple[list[str], list[int]]:
    tokens = _texts(fields, "tokenizer.ggml.tokens")
    if len(tokens) > vocab_size:
        raise CheckpointError(
            f"{fields.origin}: {len(tokens)} tokens, but the embedding has {vocab_size} rows"
        )
    kinds = fields.get("tokenizer.ggml.token_type")
    if kinds is None:
        return tokens, [NORMAL] * len(tokens)
    if not hasattr(kinds, "dtype") or kinds.dtype.kind not in "iu" or len(kinds) != len(tokens):
        raise CheckpointError(
            f"{fields.origin}: tokenizer.ggml.token_type does not hold one integer for each of "
            f"{len(tokens)} tokens"
        )
    return tokens, kinds.tolist()


def _read_merge(fields: Fields, merge: str) -> tuple[str, str]:
    # A token may begin with a space in foreign vocabularies, but none is empty.
    cut = merge.find(" ", 1)
    if cut < 0 or cut == len(merge) - 1:
        raise CheckpointError(f"{fields.origin}: merge {merge[:40]!r} is not a pair of tokens")
    return merge[:cut], merge[cut + 1 :]


def _vocabulary(fields: Fields, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Returns token -> id; unused entries only fill up the embedding and have no text."""
    vocabulary: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind == UNUSED or not token:
            continue
        if token in vocabulary:
            raise CheckpointError(
                f"{fields.origin}: tokens {vocabulary[token]} and {i} are both {token[:40]!r}"
            )
        vocabulary[token] = i
    return vocabulary


def _added_tokens(tokens: Sequence[str], kinds: Sequence[int]) -> list[dict[str, Any]]:
    """Returns the tokens found in text before anything else; only control tokens are special."""
    return [
        added_token(i, token, kind == CONTROL)
        for i, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED) and token
    ]


def _pre_tokenizer(recipe: _Recipe) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    if recipe.splits_digits:
        steps.append({"type": "Digits", "individual_digits": True})
    if recipe.split:
        pattern = {"Regex": recipe.split}
        steps.append({"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False})
    steps.append(_byte_level(uses_gpt2_split=not recipe.split))
    return {"type": "Sequence", "pretokenizers": steps}


def _byte_level(uses_gpt2_split: bool) -> dict[str, Any]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": uses_gpt2_split,
    }


def _bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], recipe: _Recipe
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": recipe.takes_whole_pieces,
        "vocab": vocabulary,
        "merges": _joined(merges),
    }


def _joined(merges: list[tuple[str, str]]) -> list[str] | list[tuple[str, str]]:
    """Returns each pair as one text, which loads sooner, unless a token holds the space between."""
    if any(" " in token for pair in merges for token in pair):
        return merges
    return [" ".join(pair) for pair in merges]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
