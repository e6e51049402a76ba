"""Engines over toy models, as the tests of the runtime have them; and one that can fill in."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import tokenizers

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.loaded import LoadedModel
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ..runtime.conftest import ToyModel, backend, make_engine, tokenizer, trained
from .typing_parts import TEXT, knowing

__all__ = ["backend", "engine", "filling", "make_engine", "make_filling", "tokenizer", "trained"]

FILLING = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
FILE_MARK = "<|file_sep|>"


@pytest.fixture
def make_filling(backend: tokenizers.Tokenizer) -> Callable[..., Engine]:
    """Returns a maker of engines whose models can fill in, and know more such tokens."""

    def make(*more: str) -> Engine:
        made = tokenizers.Tokenizer.from_str(backend.to_str())
        made.add_special_tokens([*FILLING, *more])
        codec = Tokenizer(made)
        return Engine(
            LoadedModel(ToyModel(codec.vocab_size), codec, PromptEncoder(codec), MethodParts(512))
        )

    return make


@pytest.fixture
def filling(make_filling: Callable[..., Engine]) -> Engine:
    """Returns an engine whose model can fill in."""
    return make_filling()


@pytest.fixture
def engine(make_engine: Callable[..., Engine], tokenizer: Tokenizer) -> Iterator[Engine]:
    with make_engine(knowing(TEXT, tokenizer)) as engine:
        yield engine
