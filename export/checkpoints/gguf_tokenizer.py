"""Tokenizers of GGUF metadata in the format of the ``tokenizers`` library.

The document is written directly: saving through the library prints to standard output when ids
have gaps. It is read back with the library before anyone relies on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from edgedec.export.checkpoints.gguf_pre_tokenizers import CHARACTERS, PRE_TOKENIZERS, PreTokenizer
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
    "<end_of_turn>", "</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<turn|>", "[e~[",
    "<|tool_response>", "<end_of_utterance>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
)  # fmt: skip
"""Tokens that end a text or a turn wherever they exist, and are control tokens.

Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (end-of-generation tokens by text, MIT).
"""

_MESSAGE_END, _HARMONY_ENDS = "<|end|>", ({"<|return|>", "<|call|>"}, {"<|flush|>", "<|calls|>"})
"""What ends a message, not the turn, where both of a pair end turns."""

SENTENCEPIECE = {"llama": False, "t5": True}
"""Values of ``tokenizer.ggml.model`` that mean SentencePiece -> whether as a unigram model."""

_GEMMA4 = "gemma4"
"""The value that means BPE of characters. Texts begin with BOS whatever the file says of it.

Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT).
"""

WORDPIECE = "bert"
"""The value that means WordPiece. Texts begin with CLS and end with SEP.

Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (MIT).
"""

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
        pieces = vocabulary_of_gguf(fields, tokens, kinds, is_unigram=SENTENCEPIECE[model])
        return checked_text(sentencepiece_document(pieces), fields.origin)
    if model == WORDPIECE:
        return checked_text(_wordpiece(fields, tokens, kinds), fields.origin)
    pre_tokenizer = _find_pre_tokenizer(fields)
    merges = [_read_merge(fields, merge) for merge in _texts(fields, "tokenizer.ggml.merges")]
    if pre_tokenizer.keeps_characters:
        merges += _merges_of_lines(tokens, merges)
    vocabulary = _vocabulary(fields, tokens, kinds)
    merges = _of_tokens(fields, merges, vocabulary)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(tokens, kinds),
        "normalizer": pre_tokenizer.normalizer(),
        "pre_tokenizer": pre_tokenizer.document(),
        "post_processor": None,
        "decoder": pre_tokenizer.decoder(),
        "model": _bpe(vocabulary, merges, pre_tokenizer),
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

    token_ids = [token_id("eos"), token_id("eot"), token_id("eom")]
    ends = {i: token for i, token in enumerate(tokens) if token in TURN_ENDS}
    by_text = [i for i in ends if kinds[i] == CONTROL]
    eos_ids = tuple(dict.fromkeys(i for i in token_ids + by_text if i is not None))
    if any(pair <= set(ends.values()) for pair in _HARMONY_ENDS):
        eos_ids = tuple(i for i in eos_ids if tokens[i] != _MESSAGE_END)
    bos_id = token_id("bos")
    model = fields.text("tokenizer.ggml.model")
    adds_bos = fields.flag("tokenizer.ggml.add_bos_token", _adds_bos(fields))
    adds_bos |= model == _GEMMA4
    ids = {role: token_id(key) for role, key in _ROLES.items()}
    variables = {role: tokens[i] for role, i in ids.items() if i is not None}
    opening = (bos_id,) if adds_bos and bos_id is not None else ()
    if model == WORDPIECE:
        before, behind = _wordpiece_ends(fields, tokens)
        return SpecialTokens((), before, variables, behind)
    end = token_ids[0] if fields.flag("tokenizer.ggml.add_eos_token", model == "t5") else None
    return SpecialTokens(eos_ids, opening, variables, () if end is None else (end,))


def _adds_bos(fields: Fields) -> bool:
    """Whether texts begin with a token of their own where the file does not say."""
    model = fields.text("tokenizer.ggml.model")
    if model == WORDPIECE:
        return True
    # Of the two SentencePiece models only the BPE one does.
    return (
        not SENTENCEPIECE[model] if model in SENTENCEPIECE else _find_pre_tokenizer(fields).adds_bos
    )


def _find_pre_tokenizer(fields: Fields) -> PreTokenizer:
    model = fields.text("tokenizer.ggml.model")
    if model == _GEMMA4:
        return CHARACTERS
    if model != "gpt2":
        raise UnsupportedModelError(
            f"{fields.origin}: tokenizer model {model[:40]!r} is not supported; known: gpt2 "
            f"(byte-level BPE), gemma4 (BPE of characters), llama and t5 (SentencePiece), bert "
            f"(WordPiece). Export from the Hugging Face directory instead"
        )
    pre = fields.text("tokenizer.ggml.pre", "default")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{fields.origin}: pre-tokenizer {pre[:40]!r} is not supported; known: "
            f"{', '.join(PRE_TOKENIZERS)}. Export from the Hugging Face directory instead"
        )
    return PRE_TOKENIZERS[pre]


def _wordpiece(fields: Fields, tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, Any]:
    """Returns BERT's tokenizer: files have a mark before what begins a word.

    No file says whether letters are made small; llama.cpp does that always.
    """
    names = [_wordpiece_name(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    (cls_id,), (sep_id,) = _wordpiece_ends(fields, tokens)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(i, name, True)
            for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
            if kind == CONTROL or _is_bracketed(name)
        ],
        "normalizer": {
            "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing", "sep": [names[sep_id], sep_id],
            "cls": [names[cls_id], cls_id],
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": _vocabulary(fields, names, kinds),
        },
    }  # fmt: skip


def _wordpiece_name(token: str, kind: int) -> str:
    if kind == CONTROL or _is_bracketed(token):
        return token
    return token[1:] if token.startswith("\u2581") else f"##{token}"


def _is_bracketed(token: str) -> bool:
    return token.startswith("[") and token.endswith("]") and len(token) > 2


def _wordpiece_ends(
    fields: Fields, tokens: Sequence[str]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the tokens before a text, and those behind it."""
    ends = []
    for keys, text in ((("cls", "bos"), "[CLS]"), (("seperator", "eos"), "[SEP]")):
        token_ids = (fields.get(f"tokenizer.ggml.{key}_token_id") for key in keys)
        ids = [i for i in token_ids if isinstance(i, int) and 0 <= i < len(tokens)]
        ids += [i for i, token in enumerate(tokens) if token == text]
        if not ids:
            raise CheckpointError(
                f"{fields.origin}: the vocabulary has no {text}, which texts of BERT have"
            )
        ends.append((ids[0],))
    return ends[0], ends[1]


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
        kinds = np.full(len(tokens), NORMAL)
    if not hasattr(kinds, "dtype") or kinds.dtype.kind not in "iu" or len(kinds) != len(tokens):
        raise CheckpointError(
            f"{fields.origin}: tokenizer.ggml.token_type does not hold one integer for each of "
            f"{len(tokens)} tokens"
        )
    # As llama.cpp does: what ends a turn is a control token, whatever the file says.
    return tokens, [
        CONTROL if token in TURN_ENDS and kind != UNUSED else kind
        for token, kind in zip(tokens, kinds.tolist(), strict=True)
    ]


def _read_merge(fields: Fields, merge: str) -> tuple[str, str]:
    # A token may begin with a space in foreign vocabularies, but none is empty.
    cut = merge.find(" ", 1)
    if cut < 0 or cut == len(merge) - 1:
        raise CheckpointError(f"{fields.origin}: merge {merge[:40]!r} is not a pair of tokens")
    return merge[:cut], merge[cut + 1 :]


def _of_tokens(
    fields: Fields, merges: list[tuple[str, str]], vocabulary: Mapping[str, int]
) -> list[tuple[str, str]]:
    """Returns the merges of tokens that are there: cut vocabularies keep those of others."""
    usable = [(a, b) for a, b in merges if {a, b, a + b} <= vocabulary.keys()]
    if not usable:
        raise CheckpointError(
            f"{fields.origin}: none of the {len(merges)} merges is of tokens that are there; "
            "fetch the file again"
        )
    return usable


def _merges_of_lines(
    tokens: Sequence[str], merges: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Returns pairs by which a run of line ends becomes the token that it is.

    llama.cpp takes such a run whole, where files have no merge for it, too.
    """
    runs = {token for token in tokens if token and not token.strip("\n")}
    reached = {a + b for a, b in merges}
    return [
        (run[:cut], run[cut:])
        for run in sorted(runs - reached, key=len)
        for cut in range(1, len(run))
        if {run[:cut], run[cut:]} <= runs
    ]


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


def _bpe(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], pre_tokenizer: PreTokenizer
) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": pre_tokenizer.keeps_characters,
        "ignore_merges": pre_tokenizer.takes_whole_pieces,
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
