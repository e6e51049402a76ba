"""Text to token ids and back, over the `tokenizers` library.

Text of a user never becomes a special token; special tokens come from the chat template, from
the model, or from the caller's explicit ids.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Container, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import tokenizers
from tokenizers.decoders import ByteLevel

from edgedec.models.errors import BundleError, SessionError
from edgedec.runtime.text.stream_decoder import StreamDecoder
from edgedec.runtime.text.tokenizer_checks import check_growth, panics_as

_CONTROL = re.compile(
    r"<\|[^<>]*>|<[^<>]*\|>|<｜[^<>]*｜>|<\[[^<>]*\]>|\[\|[^\[\]]*\|\]"
    r"|</?(?:fim|tool|function|file|repo|gh|issue|commit|jupyter|empty)[a-z]*(?:[_-][a-z_-]+)?>"
    r"|</?(?:start|end|begin)_(?:of_)?[a-z_]+>|<(?:unk|pad|bos|eos|cls|sep|mask)>"
    r"|\u2581?<(?:PRE|SUF|MID|EOT|PAD|REPO)>|\[/?[A-Z][A-Z_]{2,}\]"
)
"""How control tokens are written; some files mark those of infills and tools as ordinary."""


class Codec(Protocol):
    """What the engine asks of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Returns the ids of plain text; special-token text in it stays text."""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The texts of the special tokens."""

    def encode_rendered(self, text: str, restore: Mapping[int, str]) -> list[int]:
        """Returns the ids of a rendered chat template whose user texts are escaped."""

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ``ids`` without special tokens."""

    def detokenizer(self, before: Sequence[int] = ()) -> Detokenizer:
        """Returns a decoder of one output as its tokens appear; it goes on from ``before``."""

    def hidden_in(self, texts: Sequence[str]) -> dict[int, str]:
        """Returns the special tokens that no text shows, of those that ``texts`` spell."""

    def named(self, ids: Sequence[int]) -> str:
        """Returns the text of ``ids``, special tokens by their names."""

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes that a token stands for; none for tokens that no text shows."""

    def spellings(self) -> Mapping[int, bytes | str]:
        """Returns the bytes that each token stands for; for special tokens, their names."""


class Detokenizer(Protocol):
    """Turns tokens into text as they appear, never splitting a character."""

    def push(self, token: int) -> str:
        """Returns the text that ``token`` completes; may be empty."""

    def flush(self) -> str:
        """Returns what incomplete characters at the end of the output decode to."""


class Tokenizer:
    """The tokenizer of a bundle."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._hidden = frozenset(
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        )
        _mark_control_tokens(backend)
        self._decode: Callable[..., str] = backend.decode
        self._is_bytewise = isinstance(backend.decoder, ByteLevel)
        if not self._is_bytewise:  # others may panic: they do not take any bytes
            self._decode = panics_as(SessionError)(backend.decode)
        self._special = {
            token.content: token
            for token in backend.get_added_tokens_decoder().values()
            if token.special
        }
        # The longest alternative first: the library's matcher is leftmost-longest.
        contents = sorted(self._special, key=len, reverse=True)
        self._any_special = "|".join(map(re.escape, contents)) or r"(?!)"
        self._vocab_size = int(backend.get_vocab_size())
        self._aliases: dict[str, str] = {}
        self._id_of_alias: dict[int, int] = {}

    @classmethod
    def load(cls, path: Path) -> Tokenizer:
        """Returns the tokenizer stored at ``path``.

        Raises:
            BundleError: The file is missing or no tokenizer.
        """
        try:
            with panics_as(ValueError):
                tokenizer = cls(tokenizers.Tokenizer.from_file(str(path)))
                check_growth(tokenizer._backend)
                return tokenizer
        except Exception as error:  # the library raises bare Exception
            reason = str(error).partition("\n")[0]
            raise BundleError(
                f"{path} is not a tokenizer ({reason}): copy the bundle again or export the model "
                "again"
            ) from None

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special ones included."""
        return self._vocab_size

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The texts of the special tokens."""
        return tuple(self._special)

    def token(self, token_id: int | None) -> str:
        """Returns the text that stands for ``token_id`` in the vocabulary, empty for none."""
        return "" if token_id is None else (self._backend.id_to_token(token_id) or "")

    def encode(self, text: str) -> list[int]:
        """Returns the ids of plain text; special-token text in it stays text."""
        return self._ids(without_surrogates(text), is_special_text=True)

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns what `encode` gives for each of ``texts``, on as many cores as there are."""
        return self._ids_of(list(map(without_surrogates, texts)), is_special_text=True)

    def encode_rendered(self, text: str, restore: Mapping[int, str]) -> list[int]:
        """Returns the ids of a rendered chat template whose user texts are escaped.

        The text is encoded as one text, so that nothing around a user's text changes. Where user
        text spells special tokens, aliases that no text holds stand for those of the template.
        """
        if text == text.translate(restore):
            return self._ids(text, is_special_text=False)
        shown = dict.fromkeys(re.findall(self._any_special, text))
        self._make_aliases([content for content in shown if content not in self._aliases])
        aliased = re.sub(self._any_special, lambda match: self._aliases[match[0]], text)
        ids = self._ids(aliased.translate(restore), is_special_text=True)
        return [self._id_of_alias.get(i, i) for i in ids]

    def _make_aliases(self, contents: Sequence[str]) -> None:
        """Adds ordinary tokens that are found, and cut a text, as the special ``contents`` are."""
        if not contents:
            return
        with panics_as(SessionError):
            aliases = {content: _unguessable() for content in contents}
            self._backend.add_tokens(
                [_renamed(self._special[content], alias) for content, alias in aliases.items()]
            )
            self._id_of_alias |= {
                self._backend.token_to_id(alias): self._backend.token_to_id(content)
                for content, alias in aliases.items()
            }
            self._aliases |= aliases

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of ``ids`` without special tokens."""
        if not self._hidden.isdisjoint(ids):
            ids = [i for i in ids if i not in self._hidden]
        return self._decode(ids, skip_special_tokens=False)

    def spellings(self) -> Mapping[int, bytes | str]:
        """Returns the bytes that each token stands for; for special tokens, their names.

        Tokens are asked for one by one: the library returns all at once in tenths of a second in
        which no other thread of the program, such as a window's, goes on.
        """
        from edgedec.runtime.text.token_map import spelt

        backend = self._backend
        added = {
            token: (known.content, known.special)
            for token, known in backend.get_added_tokens_decoder().items()
            if token not in self._id_of_alias
        }
        return spelt(self._pieces(added), self._decoding, added)

    def _pieces(self, added: Container[int]) -> dict[str, int]:
        """Returns the ids of the model's own pieces, those of ``added`` left out."""
        backend = self._backend
        size = backend.get_vocab_size(with_added_tokens=False)
        tokens = backend.get_added_tokens_decoder().items()
        known = [(i, token) for i, token in tokens if i not in self._id_of_alias]
        n_own = size - sum(backend.model.token_to_id(t.content) == i for i, t in known)
        pieces = {
            piece: token
            for token in range(size + len(known))
            if token not in added and (piece := backend.id_to_token(token)) is not None
        }
        if len(pieces) == n_own:
            return pieces
        # Ids have gaps: only the whole vocabulary says where.
        whole: dict[str, int] = backend.get_vocab(with_added_tokens=False)
        return {piece: token for piece, token in whole.items() if token not in added}

    def detokenizer(self, before: Sequence[int] = ()) -> StreamDecoder:
        """Returns a decoder of one output as its tokens appear; it goes on from ``before``."""
        return StreamDecoder(self.decode, self._byte_values, before, self._is_bytewise)

    def hidden_in(self, texts: Sequence[str]) -> dict[int, str]:
        """Returns the special tokens that no text shows, of those that ``texts`` spell."""
        return {
            i: content
            for content in self._special
            if any(content in text for text in texts)
            and (i := self._backend.token_to_id(content)) in self._hidden
        }

    def named(self, ids: Sequence[int]) -> str:
        """Returns the text of ``ids``, special tokens by their names."""
        return self._decode(list(ids), skip_special_tokens=False)

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes that a token stands for; none for tokens that no text shows."""
        from edgedec.runtime.text.token_map import spelt

        piece = self.token(token)
        if token in self._hidden or not piece:
            return b""
        if token in self._added:
            return piece.encode()
        spelling = spelt({piece: token}, self._decoding, {}).get(token, b"")
        return spelling if isinstance(spelling, bytes) else b""

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._backend.get_added_tokens_decoder())

    @cached_property
    def _decoding(self) -> str:
        """The decoder and the pre-tokenizer, as `spelt` reads them."""
        parts = (self._backend.decoder, self._backend.pre_tokenizer)
        return "".join(part.__getstate__().decode() for part in parts if part is not None)

    @cached_property
    def _byte_values(self) -> dict[int, int]:
        """The tokens ``<0x00>`` to ``<0xFF>`` of a vocabulary that spells characters in bytes."""
        decoder = self._backend.decoder
        if decoder is None or "ByteFallback" not in decoder.__getstate__().decode():
            return {}
        ids = ((self._backend.token_to_id(f"<0x{value:02X}>"), value) for value in range(256))
        return {i: value for i, value in ids if i is not None}

    def _ids(self, text: str, is_special_text: bool) -> list[int]:
        return self._ids_of([text], is_special_text)[0] if text else []

    def _ids_of(self, texts: list[str], is_special_text: bool) -> list[list[int]]:
        # How special text is read is a setting, which no other text must meet: neither another
        # thread's, nor that of a signal's handler, which runs in between.
        with panics_as(SessionError):
            before = self._backend.encode_special_tokens
            try:
                self._backend.encode_special_tokens = is_special_text
                if len(texts) == 1:
                    return [list(self._backend.encode(texts[0], add_special_tokens=False).ids)]
                encodings = self._backend.encode_batch(texts, add_special_tokens=False)
                return [list(encoding.ids) for encoding in encodings]
            finally:
                self._backend.encode_special_tokens = before


def _unguessable() -> str:
    """Returns private-use characters that no text holds: 96 random bits."""
    return "".join(chr(0x100000 + byte) for byte in secrets.token_bytes(12))


def _renamed(token: tokenizers.AddedToken, content: str) -> tokenizers.AddedToken:
    """Returns an ordinary token of another text that is found as ``token`` is."""
    return tokenizers.AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )


def _mark_control_tokens(backend: tokenizers.Tokenizer) -> None:
    """Makes special what reads like a control token, so that no user's text becomes one."""
    added = backend.get_added_tokens_decoder().values()
    control = [token for token in added if not token.special and _CONTROL.fullmatch(token.content)]
    for token in control:
        token.special = True
    if control:
        backend.add_special_tokens(control)


def without_surrogates(text: str) -> str:
    """Returns ``text`` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text
