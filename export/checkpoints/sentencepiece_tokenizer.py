"""SentencePiece vocabularies in the format of the ``tokenizers`` library."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

from edgedec.export.checkpoints.gguf_pre_tokenizers import BLANK, replaced
from edgedec.export.checkpoints.sentencepiece_vocabulary import (
    BYTE,
    CONTROL,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
)
from edgedec.models.errors import UnsupportedModelError

_NEVER = -1e9
"""Score of unigram pieces that no text spells."""


def sentencepiece_document(vocabulary: Vocabulary) -> dict[str, Any]:
    """Returns the document of a ``tokenizer.json`` that gives the ids SentencePiece gives.

    As in llama.cpp, and in transformers by default, text behind a special token begins with the
    blank that opens a text.

    Raises:
        CheckpointError: the vocabulary contradicts itself.
        UnsupportedModelError: the library cannot express this merging.
    """
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(i, piece, vocabulary.kinds[i] == CONTROL, _is_normalized(vocabulary, piece))
            for i, piece in vocabulary.of_kind(CONTROL, USER_DEFINED)
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(vocabulary)},
        "pre_tokenizer": _guard(vocabulary),
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": _decoders(vocabulary)},
        "model": _unigram(vocabulary) if vocabulary.is_unigram else _bpe(vocabulary),
    }


def added_token(
    token_id: int, content: str, is_special: bool, is_normalized: bool = False
) -> dict[str, Any]:
    """Returns a token that is found in text before anything else."""
    return {
        "id": token_id,
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": is_normalized,
        "special": is_special,
    }


def _is_normalized(vocabulary: Vocabulary, piece: str) -> bool:
    """Whether ``piece`` is looked for once blanks are marked; a prefix would spoil it there."""
    return BLANK in piece and not vocabulary.has_prefix


def _normalizers(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if vocabulary.charsmap:
        charsmap = base64.b64encode(vocabulary.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if vocabulary.trims:
        steps.append(_matches_replaced(rf"\A +|[ {BLANK}]+\z", ""))
        steps.append(_matches_replaced(" {2,}", " "))
    if vocabulary.has_prefix:
        steps.append({"type": "Prepend", "prepend": BLANK})
    steps.append(replaced(" ", BLANK))
    return steps


def _decoders(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = [replaced(BLANK, " ")]
    if vocabulary.has_bytes:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if vocabulary.has_prefix:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _matches_replaced(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}


def _bpe(vocabulary: Vocabulary) -> dict[str, Any]:
    unknown = vocabulary.pieces[vocabulary.unknown_id]
    _check_characters(vocabulary)
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": unknown,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": vocabulary.has_bytes,
        "ignore_merges": False,
        "vocab": {piece: i for i, piece in vocabulary.used()},
        "merges": _merges(vocabulary),
    }


def _check_characters(vocabulary: Vocabulary) -> None:
    """Merging begins with characters, and the library's with those alone that are pieces."""
    pieces = [piece for _, piece in vocabulary.of_kind(NORMAL)]
    single = {piece for piece in pieces if len(piece) == 1}
    if missing := sorted(set("".join(_merged(pieces))) - single):
        raise UnsupportedModelError(
            f"{vocabulary.origin}: the character {missing[0]!r} is in pieces and none itself; "
            f"export a Hugging Face directory that has a tokenizer.json"
        )


def cut_otherwise(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Returns a line if texts with user-defined symbols get other ids than from SentencePiece.

    Symbols are found before blanks are put in front of texts or taken away, not behind that.
    """
    symbols = [
        piece for _, piece in vocabulary.of_kind(USER_DEFINED) if piece.strip(f"{BLANK} \t\n")
    ]
    if not symbols or not (vocabulary.has_prefix or vocabulary.trims):
        return ()
    return (
        f"{vocabulary.origin}: blanks beside user-defined symbols such as {symbols[0][:40]!r} get "
        "other ids than from SentencePiece: take a directory with a tokenizer.json if prompts hold "
        "such symbols",
    )


def _merged(pieces: Sequence[str]) -> set[str]:
    """Returns the pieces that merging reaches from characters, pieces or not."""
    merged: set[str] = set()
    for piece in sorted(pieces, key=len):
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        if any(all(len(part) == 1 or part in merged for part in parts) for parts in cuts):
            merged.add(piece)
    return merged


def _merges(vocabulary: Vocabulary) -> list[list[str]]:
    """Returns the pairs that spell a piece, those of the best piece first."""
    kinds = {NORMAL} | ({USER_DEFINED} if vocabulary.has_prefix else set())
    pieces = [
        (i, piece)
        for i, piece in vocabulary.of_kind(*kinds)
        # What is found beforehand is never merged.
        if vocabulary.kinds[i] == NORMAL or BLANK in piece
    ]
    known = {piece for _, piece in pieces}
    pieces.sort(key=lambda entry: (-vocabulary.scores[entry[0]], entry[0]))
    return [
        [piece[:cut], piece[cut:]]
        for _, piece in pieces
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]


def _unigram(vocabulary: Vocabulary) -> dict[str, Any]:
    pieces = [
        [piece or f"[{i}]", score if kind == NORMAL else _NEVER]
        for i, (piece, score, kind) in enumerate(
            zip(vocabulary.pieces, vocabulary.scores, vocabulary.kinds, strict=True)
        )
    ]
    return {
        "type": "Unigram",
        "unk_id": vocabulary.unknown_id,
        "vocab": pieces,
        "byte_fallback": vocabulary.has_bytes,
    }


def _guard(vocabulary: Vocabulary) -> dict[str, Any] | None:
    """Returns what cuts text that reads like a control or byte piece of a unigram model.

    Its algorithm would take such a piece where a character of it is unknown otherwise.
    """
    if not vocabulary.is_unigram:
        return None
    spelt = set("".join(piece for _, piece in vocabulary.of_kind(NORMAL) if len(piece) == 1))
    texts = [p for _, p in vocabulary.of_kind(CONTROL, BYTE, UNKNOWN) if not set(p) <= spelt]
    if not texts:
        return None
    pattern = "|".join(f"{re.escape(text[0])}(?={re.escape(text[1:])})" for text in texts)
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }
