"""What the tokens of a target and a draft model have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError
from edgedec.runtime.text.common_prefix import common_prefix

Ids = npt.NDArray[np.int64]
Spelling = bytes | str
"""The bytes of an ordinary token, the text of a special one."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_TOKEN_BYTES = 256
"""Longer tokens (runs of blanks) are not looked for when a text is cut anew."""


class TokenMap:
    """Between the target model's tokens and those of a draft model.

    names: target token that each of the draft's logits stands for, -1 for none.
    draft_ids: draft token of each logit.

    Shapes: names, draft_ids [N] int64.
    """

    def __init__(self, names: Ids, draft_ids: Ids, read: Callable[[int], tuple[int, ...]]) -> None:
        self.names = names
        self.draft_ids = draft_ids
        self._read = read

    @classmethod
    def same(cls, target_size: int, draft_size: int, head_ids: Iterable[int] | None = None) -> Self:
        """Returns the map between models that share a tokenizer.

        Args:
            target_size: Tokens of the target model's vocabulary.
            draft_size: Rows of the draft model's embedding, which may be padded otherwise.
            head_ids: Tokens of a trimmed LM head.
        """
        ids = np.arange(draft_size) if head_ids is None else np.fromiter(head_ids, np.int64)
        names = np.where(ids < target_size, ids, -1)
        return cls(names, ids, lambda token: (token,) if token < draft_size else ())

    @classmethod
    def between(
        cls,
        target: Mapping[int, Spelling],
        draft: Mapping[int, Spelling],
        draft_size: int,
        head_ids: Iterable[int] | None = None,
    ) -> Self:
        """Returns the map between models whose tokens are spelt as ``target`` and ``draft`` say.

        Tokens spelt alike are the same; other tokens of the target are read as the longest draft
        tokens that spell them, other tokens of the draft are never proposed.

        Source: token-level intersection (Timor et al., 2025, algorithm 4).

        Raises:
            ConfigError: No ordinary token is spelt alike.
        """
        target_of, draft_of = _by_spelling(target), _by_spelling(draft)
        if not any(isinstance(spelling, bytes) for spelling in target_of.keys() & draft_of.keys()):
            raise ConfigError(
                "the draft model's tokenizer shares no token with the target model's: choose a "
                "draft model with the same or a similar tokenizer"
            )
        ids = np.arange(draft_size) if head_ids is None else np.fromiter(head_ids, np.int64)
        names = np.full(len(ids), -1, np.int64)
        for i, draft_id in enumerate(ids.tolist()):
            spelling = draft.get(draft_id)
            if spelling is not None and draft_of[spelling] == draft_id:
                names[i] = target_of.get(spelling, -1)
        return cls(names, ids, _Reader(target, draft_of))

    def read(self, tokens: Iterable[int]) -> list[int]:
        """Returns the draft tokens that spell ``tokens`` of the target.

        What cannot be spelt is left out. Each token is read by itself, so a longer text begins as
        a shorter one does.
        """
        return [draft_id for token in tokens for draft_id in self._read(token)]


class DraftText:
    """The text so far in the draft model's tokens, kept up while it grows."""

    def __init__(self, token_map: TokenMap) -> None:
        self._map = token_map
        self._text: list[int] = []
        self._ends = [0]  # number of draft tokens after each number of tokens
        self.tokens: list[int] = []

    def follow(self, text: Sequence[int]) -> list[int]:
        """Returns ``text``, tokens of the target, in draft tokens. Do not change the list."""
        n_common = common_prefix(self._text, text)
        del self._text[n_common:], self._ends[n_common + 1 :]
        del self.tokens[self._ends[-1] :]
        for token in text[n_common:]:
            self.tokens += self._map.read((token,))
            self._text.append(token)
            self._ends.append(len(self.tokens))
        return self.tokens


def spellings(tokenizer: Mapping[str, Any]) -> dict[int, Spelling]:
    """Returns how each token of a ``tokenizer.json`` is spelt.

    Byte-level vocabularies spell bytes; those of SentencePiece write blanks as U+2581 and bytes
    that no other token spells as ``<0x0A>``.
    """
    vocabulary = tokenizer.get("model", {}).get("vocab", {})
    if isinstance(vocabulary, list):  # Unigram: pieces with scores, in the order of ids
        vocabulary = {piece: i for i, (piece, _) in enumerate(vocabulary)}
    how = json.dumps([tokenizer.get("decoder"), tokenizer.get("pre_tokenizer")])
    added = tokenizer.get("added_tokens", ())
    special = {token["id"]: (token["content"], token.get("special", False)) for token in added}
    return spelt(vocabulary, how, special)


def spelt(
    vocabulary: Mapping[str, int], how: str, added: Mapping[int, tuple[str, bool]]
) -> dict[int, Spelling]:
    """Returns how each token is spelt.

    vocabulary: ids of pieces. how: decoder and pre-tokenizer, as tokenizer.json has them. added:
    the content of tokens beside the vocabulary, or in its place, and whether they are special.
    """
    spell = _byte_levels if '"ByteLevel"' in how else _sentence_pieces
    return {**spell(vocabulary)} | {
        token: content if is_special else content.encode()
        for token, (content, is_special) in added.items()
    }


class _Reader:
    """Reads tokens of the target as draft tokens."""

    def __init__(self, target: Mapping[int, Spelling], draft_of: Mapping[Spelling, int]) -> None:
        self._target = target
        self._draft_of = draft_of
        self._longest = min(_MAX_TOKEN_BYTES, max(len(s) for s in draft_of if isinstance(s, bytes)))
        self._known: dict[int, tuple[int, ...]] = {}

    def __call__(self, token: int) -> tuple[int, ...]:
        if token not in self._known:
            self._known[token] = self._cut(self._target.get(token, b""))
        return self._known[token]

    def _cut(self, spelling: Spelling) -> tuple[int, ...]:
        """Returns the longest draft tokens that spell ``spelling``, from its beginning on."""
        if (whole := self._draft_of.get(spelling)) is not None:
            return (whole,)
        text = spelling.encode() if isinstance(spelling, str) else spelling
        ids: list[int] = []
        while text:
            for n in range(min(len(text), self._longest), 0, -1):
                if (draft_id := self._draft_of.get(text[:n])) is not None:
                    ids.append(draft_id)
                    break
            text = text[n:]  # a byte that no token spells is left out
        return tuple(ids)


def _by_spelling(tokens: Mapping[int, Spelling]) -> dict[Spelling, int]:
    """Returns the lowest id of each spelling."""
    ids: dict[Spelling, int] = {}
    for token_id in sorted(tokens, reverse=True):
        ids[tokens[token_id]] = token_id
    return ids


def _byte_levels(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    table = _bytes_of_characters()
    return {
        token_id: b"".join(table.get(character) or character.encode() for character in text)
        for text, token_id in vocabulary.items()
    }


def _sentence_pieces(vocabulary: Mapping[str, int]) -> dict[int, bytes]:
    single = {i: match for text, i in vocabulary.items() if (match := _BYTE_TOKEN.fullmatch(text))}
    spellings = {
        token_id: text.replace("\u2581", " ").encode()
        for text, token_id in vocabulary.items()
        if token_id not in single
    }
    spelt = set(spellings.values())
    values = {token_id: bytes([int(match[1], 16)]) for token_id, match in single.items()}
    return spellings | {i: value for i, value in values.items() if value not in spelt}


@lru_cache(maxsize=1)
def _bytes_of_characters() -> dict[str, bytes]:
    """Returns the byte that each character of a byte-level vocabulary stands for.

    Source: openai/gpt-2 ``src/encoder.py`` (bytes_to_unicode, MIT).
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = [*printable, *range(256, 256 + len(others))]
    return {chr(c): bytes([b]) for c, b in zip(characters, printable + others, strict=True)}
