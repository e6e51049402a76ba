"""Tokenizers of Hugging Face directories that have a `tokenizer.model` and no `tokenizer.json`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from edgedec.export.checkpoints.gguf_tokenizer import checked_text
from edgedec.export.checkpoints.sentencepiece_tokenizer import sentencepiece_document
from edgedec.export.checkpoints.sentencepiece_vocabulary import (
    CONTROL,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    read_model_file,
)
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields

_FLAGS = ("single_word", "lstrip", "rstrip")


N_EXTRA = 100
"""Tokens ``<extra_id_I>`` that T5's tokenizer class adds where ``extra_ids`` is not stated.

Source: transformers 4.57 ``tokenization_t5.py``, ``convert_slow_tokenizer.py`` ``T5Converter``
(Apache-2.0).
"""

_END = "</s>"


def build_from_spiece(path: Path, settings: Fields, vocab_size: int) -> str:
    """Returns as `build_from_model`, of a `spiece.model`: as T5's class reads it.

    It adds tokens for what is left out of a text, the last one first, and ends texts.
    """
    n = settings.integer("extra_ids", N_EXTRA, least=0)
    extra = tuple(f"<extra_id_{i}>" for i in reversed(range(min(n, vocab_size))))
    return build_from_model(path, settings, vocab_size, extra, _END)


def build_from_model(
    path: Path,
    settings: Fields,
    vocab_size: int,
    extra: tuple[str, ...] = (),
    closing: str | None = None,
) -> str:
    """Returns the text of a ``tokenizer.json`` that does what the SentencePiece model does.

    Args:
        path: the `tokenizer.model` file.
        stated: the directory's tokenizer_config.json, which may add tokens.
        vocab_size: rows of the embedding.
        extra: special tokens behind those of the file.
        closing: the token that texts end with, if there is one.

    Raises:
        CheckpointError: a file is damaged, or they contradict each other.
        UnsupportedModelError: the model is of a kind that is not read.
    """
    vocabulary = read_model_file(path)
    vocabulary = dataclasses.replace(
        vocabulary,
        pieces=(*vocabulary.pieces, *extra),
        kinds=(*vocabulary.kinds, *(CONTROL for _ in extra)),
        scores=(*vocabulary.scores, *(0.0 for _ in extra)),
    )
    added = {_token_id(settings, key, vocab_size): token for key, token in _added(settings)}
    vocabulary = _with_tokens(vocabulary, added)
    if len(vocabulary.pieces) > vocab_size:
        raise CheckpointError(
            f"{path}: {len(vocabulary.pieces)} tokens, but the embedding has {vocab_size} rows"
        )
    document = sentencepiece_document(vocabulary)
    for token in document["added_tokens"]:
        if token["id"] in added:
            fields = added[token["id"]]
            token |= {flag: fields.flag(flag, False) for flag in _FLAGS}
    document["post_processor"] = _opening(vocabulary, settings)
    if closing is not None and closing in vocabulary.pieces:
        document["post_processor"] = _template(vocabulary, closing, is_first=False)
    return checked_text(document, str(path))


def _added(settings: Fields) -> list[tuple[str, Fields]]:
    return settings.tables("added_tokens_decoder") if settings.get("added_tokens_decoder") else []


def _token_id(settings: Fields, key: str, vocab_size: int) -> int:
    if not key.isdecimal() or int(key) >= vocab_size:
        settings.fail("added_tokens_decoder", key, f"ids below {vocab_size}")
    return int(key)


def _with_tokens(vocabulary: Vocabulary, added: dict[int, Fields]) -> Vocabulary:
    """Returns ``vocabulary`` with the tokens that the directory adds, or says more about."""
    n_missing = max([0, *(i + 1 - len(vocabulary.pieces) for i in added)])
    pieces = [*vocabulary.pieces, *[""] * n_missing]
    kinds = [*vocabulary.kinds, *[UNUSED] * n_missing]
    for i, token in added.items():
        is_piece = i < len(vocabulary.pieces)
        if is_piece and token.text("content") != pieces[i]:
            token.fail("content", token.text("content"), f"{pieces[i]!r} as in tokenizer.model")
        pieces[i] = token.text("content")
        is_special = token.flag("special", False)
        if not is_piece or kinds[i] in (CONTROL, USER_DEFINED) or is_special:
            is_unknown = is_piece and i == vocabulary.unknown_id
            kinds[i] = kinds[i] if is_unknown else CONTROL if is_special else USER_DEFINED
    return dataclasses.replace(
        vocabulary,
        pieces=tuple(pieces),
        kinds=tuple(kinds),
        scores=(*vocabulary.scores, *[0.0] * n_missing),
    )


def _opening(vocabulary: Vocabulary, settings: Fields) -> dict[str, Any] | None:
    """Returns what puts the opening token before a text; unigram models have none by default."""
    token = settings.get("bos_token")
    text = token.get("content") if isinstance(token, dict) else token
    is_wanted = settings.flag("add_bos_token", not vocabulary.is_unigram)
    if not is_wanted or not isinstance(text, str) or text not in vocabulary.pieces:
        return None
    return _template(vocabulary, text, is_first=True)


def _template(vocabulary: Vocabulary, text: str, is_first: bool) -> dict[str, Any]:
    """Returns what puts the token ``text`` before texts, or behind them."""
    parts = [{"SpecialToken": {"id": text, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    parts = parts if is_first else parts[::-1]
    special = {"id": text, "ids": [vocabulary.pieces.index(text)], "tokens": [text]}
    return {
        "type": "TemplateProcessing",
        "single": parts,
        "pair": [*parts, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {text: special},
    }
