"""Texts of encoder-decoder models: what the encoder reads, then what the decoder writes.

Such a text is one list of tokens, whose first part is the *source*. Keys and values of the source,
which all layers of the decoder look at, are the rows of its tokens; those of the others are the
decoder's own. Ids say which token is which: of a vocabulary of V tokens, a token of the source has
V more than its own id, the last one 2 V more. So two sources that differ never share more than
tokens which no pass may follow, and a text says by itself how long its source is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edgedec.models.errors import SessionError


@dataclass(frozen=True)
class SourceText:
    """What texts of an encoder-decoder model begin and end with.

    closing_token_ids: end a source that is plain text. start_token_id: what a decoder begins with.
    """

    closing_token_ids: tuple[int, ...]
    start_token_id: int


def source_tokens(ids: Sequence[int], vocab_size: int) -> list[int]:
    """Returns the tokens of a source whose own ids are ``ids``."""
    *others, last = ids
    return [*(vocab_size + i for i in others), 2 * vocab_size + last]


def is_source(token: int, vocab_size: int) -> bool:
    """Says whether a token is one of a source."""
    return token >= vocab_size


def n_source(tokens: Sequence[int], vocab_size: int) -> int:
    """Returns how many tokens a text's source has; 0 while its last one is not among them."""
    end = next((i for i, token in enumerate(tokens) if token < vocab_size), len(tokens))
    return end if end and tokens[end - 1] >= 2 * vocab_size else 0


def source_ids(tokens: Sequence[int], vocab_size: int) -> list[int]:
    """Returns the own ids of a whole source; a SessionError where ``tokens`` are none."""
    if not tokens or n_source(tokens, vocab_size) != len(tokens):
        raise SessionError(
            f"the encoder was given {len(tokens)} tokens that are no whole source: compute the "
            "text from its beginning"
        )
    return [token % vocab_size for token in tokens]
