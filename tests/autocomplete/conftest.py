"""Engines over toy models, as the tests of the runtime have them."""

from ..runtime.conftest import backend, make_engine, tokenizer

__all__ = ["backend", "make_engine", "tokenizer"]
