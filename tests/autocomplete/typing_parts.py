"""A text, a model that knows it by heart, and cursors in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from edgedec.autocomplete import Document, Offer
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.tokenizer import Tokenizer

from ..runtime.conftest import Row, one_hot

TEXT = "The quick brown fox\njumps over the lazy dog.\nThe quick brown fox\n"
Maker = Callable[..., Engine]


def knowing(text: str, codec: Tokenizer) -> Callable[[Sequence[int]], Row]:
    """Returns the rule of a model that is sure how ``text`` goes on, and of nothing else."""

    def rule(prefix: Sequence[int]) -> Row:
        read = codec.decode(prefix)
        rest = text[len(read) :] if text.startswith(read) else ""
        sureness = 4.0 if rest else 0.01
        row: Row = one_hot(codec.vocab_size, codec.encode(rest or "x")[0]) * sureness
        return row

    return rule


def at(cursor: int, text: str = TEXT) -> Document:
    """Returns a document that ends at the cursor."""
    return Document(text[:cursor], cursor, "a.txt")


def offered(future: Future[Offer | None]) -> str:
    offer = future.result(timeout=60)
    return "" if offer is None else offer.text


class HeldPasses:
    """Called before each pass: says that one began, and holds all until they may go on."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.goes_on = threading.Event()
        self.n_given_up = 0

    def __call__(self) -> None:
        self.began.set()
        self.n_given_up += not self.goes_on.wait(60)
