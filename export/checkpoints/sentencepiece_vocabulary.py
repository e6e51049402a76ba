"""SentencePiece vocabularies, from `tokenizer.model` files and from GGUF metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from edgedec.export.protobuf import message_classes
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of pieces, in both formats."""

MAX_MODEL_BYTES = 1 << 26
_UNIGRAM, _BPE = 1, 2
_ALGORITHMS = {_UNIGRAM: "unigram", _BPE: "bpe"}
_OTHER_ALGORITHMS = {3: "word", 4: "char"}


@dataclass(frozen=True)
class Vocabulary:
    """Pieces by id, and how text becomes pieces.

    is_unigram: the likeliest cut of the whole text is taken; otherwise (BPE) the best pair of
    neighbours is merged until none is left. has_prefix: a blank is put before the text.
    trims: blanks at the ends go, runs of them become one. charsmap: compiled rules that replace
    characters, empty for none. stated_unknown: the piece for unknown characters where none is of
    that kind.
    """

    origin: str
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    kinds: tuple[int, ...]
    is_unigram: bool
    has_prefix: bool
    trims: bool
    charsmap: bytes
    stated_unknown: int = -1

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.scores)):
            raise CheckpointError(f"{self.origin}: a piece has an infinite score; fetch it again")
        seen: dict[str, int] = {}
        for i, piece in self.used():
            if piece in seen:
                raise CheckpointError(
                    f"{self.origin}: pieces {seen[piece]} and {i} are both {piece[:40]!r}"
                )
            seen[piece] = i

    @property
    def has_bytes(self) -> bool:
        """Whether characters without a piece are spelt in bytes."""
        return BYTE in self.kinds

    @property
    def unknown_id(self) -> int:
        """The id of what stands for unknown characters.

        Raises:
            CheckpointError: there is none.
        """
        if UNKNOWN in self.kinds:
            return self.kinds.index(UNKNOWN)
        for token_id in (self.stated_unknown, 0):
            is_piece = 0 <= token_id < len(self.pieces)
            if is_piece and (self.kinds[token_id] == CONTROL or self.has_bytes):
                return token_id  # where bytes spell everything, it stands for nothing
        raise CheckpointError(f"{self.origin}: no piece stands for unknown characters")

    def used(self) -> Iterator[tuple[int, str]]:
        """Yields id and text of all pieces but those that only fill up the embedding."""
        for i, (piece, kind) in enumerate(zip(self.pieces, self.kinds, strict=True)):
            if kind != UNUSED and piece:
                yield i, piece

    def of_kind(self, *kinds: int) -> list[tuple[int, str]]:
        """Returns id and text of the pieces of these kinds."""
        return [(i, piece) for i, piece in self.used() if self.kinds[i] in kinds]


def vocabulary_of_gguf(
    fields: Fields, pieces: Sequence[str], kinds: Sequence[int], is_unigram: bool
) -> Vocabulary:
    """Returns the vocabulary in GGUF metadata.

    Source: ggml-org/llama.cpp ``src/llama-vocab.cpp`` (what absent keys mean, MIT).

    Raises:
        CheckpointError: it contradicts itself.
        UnsupportedModelError: blanks are marked behind words.
    """
    fields.refuse("tokenizer.ggml.treat_whitespace_as_suffix", False)
    scores = _numbers(fields, "tokenizer.ggml.scores", "f")
    if len(scores) != len(pieces):
        raise CheckpointError(
            f"{fields.origin}: tokenizer.ggml.scores does not hold one number for each of "
            f"{len(pieces)} tokens"
        )
    return Vocabulary(
        origin=fields.origin,
        pieces=tuple(pieces),
        scores=scores,
        kinds=tuple(kinds),
        is_unigram=is_unigram,
        has_prefix=fields.flag("tokenizer.ggml.add_space_prefix", True),
        trims=fields.flag("tokenizer.ggml.remove_extra_whitespaces", False),
        charsmap=bytes(map(int, _numbers(fields, "tokenizer.ggml.precompiled_charsmap", "iu"))),
        stated_unknown=fields.integer("tokenizer.ggml.unknown_token_id", 0),
    )


def _numbers(fields: Fields, key: str, kinds: str) -> tuple[Any, ...]:
    values = fields.get(key)
    if values is None:
        return ()
    if not hasattr(values, "dtype") or values.dtype.kind not in kinds:
        fields.fail(key, values, "a list of numbers")
    numbers = tuple(values.tolist())
    if kinds == "iu" and not all(0 <= number < 256 for number in numbers):
        fields.fail(key, numbers, "bytes")
    return numbers


def read_model_file(path: Path) -> Vocabulary:
    """Returns the vocabulary in a `tokenizer.model` file.

    Source: google/sentencepiece ``src/sentencepiece_model.proto`` (Apache-2.0).

    Raises:
        CheckpointError: the file is damaged.
        UnsupportedModelError: its algorithm is neither unigram nor BPE, or the like.
    """
    model = _parse(path)
    trainer, normalizer = model.trainer_spec, model.normalizer_spec
    if trainer.model_type not in _ALGORITHMS:
        name = _OTHER_ALGORITHMS.get(trainer.model_type, trainer.model_type)
        raise UnsupportedModelError(f"{path}: its algorithm is {name!r}, expected unigram or bpe")
    if trainer.treat_whitespace_as_suffix or not normalizer.escape_whitespaces:
        raise UnsupportedModelError(
            f"{path}: marks blanks behind words or not at all, expected before words"
        )
    return Vocabulary(
        origin=str(path),
        pieces=tuple(piece.piece for piece in model.pieces),
        scores=tuple(piece.score for piece in model.pieces),
        kinds=tuple(piece.type for piece in model.pieces),
        is_unigram=trainer.model_type == _UNIGRAM,
        has_prefix=normalizer.add_dummy_prefix,
        trims=normalizer.remove_extra_whitespaces,
        charsmap=normalizer.precompiled_charsmap,
    )


def _parse(path: Path) -> Any:
    from google.protobuf.message import DecodeError

    if path.stat().st_size > MAX_MODEL_BYTES:
        raise CheckpointError(f"{path}: is larger than {MAX_MODEL_BYTES} bytes; fetch it again")
    message = _message_class()()
    try:
        message.ParseFromString(path.read_bytes())
    except DecodeError:
        raise CheckpointError(f"{path}: is not a SentencePiece model; fetch it again") from None
    # What is cut off between two pieces parses, but has neither of the parts behind them.
    if not (message.HasField("trainer_spec") and message.HasField("normalizer_spec")):
        raise CheckpointError(f"{path}: is not a whole SentencePiece model; fetch it again")
    return message


@cache
def _message_class() -> Any:
    """Returns the class of SentencePiece's ModelProto, with the fields that are read here."""
    messages = {
        "Model": "repeated Piece pieces = 1; Trainer trainer_spec = 2; "
        "Normalizer normalizer_spec = 3",
        "Piece": f"string piece = 1; float score = 2; int32 type = 3 [default = {NORMAL}]",
        "Trainer": f"int32 model_type = 3 [default = {_UNIGRAM}]; "
        "bool treat_whitespace_as_suffix = 24 [default = false]",
        "Normalizer": "bytes precompiled_charsmap = 2; bool add_dummy_prefix = 3 [default = true]; "
        "bool remove_extra_whitespaces = 4 [default = true]; "
        "bool escape_whitespaces = 5 [default = true]",
    }
    return message_classes("edgedec.sentencepiece", messages)["Model"]
