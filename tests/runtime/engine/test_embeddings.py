"""Texts as vectors, against the hidden states of their tokens one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import load
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.token_tree import TokenTree

TEXTS = ["How do I bake bread?", "What is the recipe for a loaf?", "The rocket left the orbit."]


def states(engine: Engine, text: str) -> Any:
    """Returns the hidden states behind the last layer, each of length 1."""
    layer, found = engine.model.n_layers, []
    sequence = engine.new_sequence()
    for token in engine.encode(text):
        rows = sequence.forward(TokenTree.chain([token]), [0], hidden_layers=(layer,))
        found.append(rows.hidden[layer][0].astype(np.float64))
        sequence.commit([0])
    sequence.close()
    return np.array([state / np.linalg.norm(state) for state in found])


@pytest.mark.parity
def test_vectors_are_those_of_the_hidden_states(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        long = "The quick brown fox jumps over the lazy dog. " * 20  # several passes
        for text in (TEXTS[0], long):
            mean, last = engine.embed([text]), engine.embed([text], "last")
            wanted = states(engine, text)
            total = wanted.sum(axis=0)
            assert np.allclose(mean[0], total / np.linalg.norm(total), atol=1e-6)
            assert np.allclose(last[0], wanted[-1], atol=1e-6)
        together = engine.embed(TEXTS)
        for text, row in zip(TEXTS, together, strict=True):
            assert np.array_equal(row, engine.embed([text])[0])
        alike = together @ together.T
        assert alike[0, 1] > alike[0, 2]


def test_what_has_no_vector(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        assert engine.embed([]).size == 0
        assert engine.embed(["a b c"], is_over=lambda: True).size == 0
        with pytest.raises(ConfigError, match="pooling is 'max', expected mean or last"):
            engine.embed(["a"], "max")  # type: ignore[arg-type]
        with pytest.raises(SessionError, match="prompt is"):
            engine.embed(["a", ""])
