"""Outputs that begin with a given text: what is allowed against all spellings, whole outputs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.strategy import DecodeState
from edgedec.runtime.decoding.switching.policy import Signal
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sampling.prefix_mask import PrefixMask, Spellings
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.text.tokenizer import Tokenizer

from ..conftest import ToySession

TEXTS = ("a", " the", "fox jumps", "é", "日本語", "🙂🙂", "\n\n    if", "<|im_end|>", "\0")


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_that_agree(tokenizer: Tokenizer, text: str) -> None:
    """Walked to its end by tokens drawn from those allowed; each row against all spellings."""
    n_ids = tokenizer.vocab_size + 3
    of = {t: s for t, s in tokenizer.spellings().items() if isinstance(s, bytes) and s}
    mask, rng = PrefixMask(Spellings(tokenizer, n_ids), text), np.random.default_rng(0)
    for _ in range(5):
        mask.begin([1, 2])
        tokens: list[int] = []
        while (row := mask.row_after(tokens)) is not None:
            rest = text.encode()[sum(len(of[token]) for token in tokens) :]
            expected = [t for t, s in of.items() if s.startswith(rest) or rest.startswith(s)]
            assert np.flatnonzero(row).tolist() == sorted(expected)
            tokens.append(int(rng.choice(expected)))
        assert b"".join(of[token] for token in tokens).startswith(text.encode())
        for n, token in enumerate(tokens):
            assert mask.row_after(tokens[n:]) is None
            assert not mask.is_free
            mask.accept(token)
        assert mask.row_after(()) is None
        assert mask.is_free
        assert not mask.is_finished
        assert not mask.forced()


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("text", TEXTS)
def test_outputs_begin_with_it(
    make_engine: Callable[..., Engine], text: str, temperature: float
) -> None:
    found = []
    with make_engine() as engine:
        for method in ("plain", "lookup", "recycling"):
            request = GenerationConfig(
                max_new_tokens=24,
                prefix=text,
                method=method,
                sampling=SamplingConfig(temperature=temperature),
            )
            found.append(engine.generate("one two one two", request))
            assert found[-1].text.startswith(text)
    assert found[0].token_ids == found[1].token_ids == found[2].token_ids


def test_logits_are_moved_for_the_prefix_alone(tokenizer: Tokenizer) -> None:
    """What comes behind it is chosen by statistics of rows, as without a prefix."""
    mask = PrefixMask(Spellings(tokenizer, tokenizer.vocab_size), "fox")
    sequence = ToySession(tokenizer.vocab_size, 64)
    state = DecodeState.start(sequence, [1], GenerationConfig(prefix="fox"), frozenset(), mask)
    for token in tokenizer.encode("fox"):
        assert state.needs_logits
        state.append(token)
    assert not state.needs_logits


def test_the_signal_is_of_the_tokens_that_agree(tokenizer: Tokenizer) -> None:
    """Against the definition: the chosen token's share among those that may be chosen."""
    spellings = Spellings(tokenizer, tokenizer.vocab_size)
    sequence = ToySession(tokenizer.vocab_size, 64)
    mask = PrefixMask(spellings, "fo")
    state = DecodeState.start(sequence, [1], GenerationConfig(prefix="fo"), frozenset(), mask)
    state.is_watched = True
    logits = np.random.default_rng(0).normal(0, 3, (1, tokenizer.vocab_size)).astype(np.float32)
    token = state.pick_from(Rows(logits), 0, Noise(0))
    state.append(token)
    agreeing = spellings.agreeing(b"fo")
    weights = np.where(agreeing, np.exp(logits[0].astype(np.float64)), 0.0)
    assert 1 < agreeing.sum() < len(agreeing)
    assert state.chosen_by is not None
    signal = Signal.of(*state.chosen_by)
    assert signal.top_prob == pytest.approx(weights[token] / weights.sum(), rel=1e-6)


def test_spellings_are_in_no_list(tokenizer: Tokenizer) -> None:
    """Garbage is looked for in all of a list, by a window's thread for one, which waits so long."""
    kept = vars(Spellings(tokenizer, tokenizer.vocab_size)).values()
    assert not any(isinstance(one, list | tuple) for one in kept)


def test_a_prefix_that_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match="prefix and regex are given, expected one"):
        GenerationConfig(prefix="a", regex="a+")
    with pytest.raises(ConfigError, match="expected whole characters"):
        GenerationConfig(prefix="\ud800")
    with pytest.raises(ConfigError, match="prefix is 7, expected text"):
        GenerationConfig(prefix=7)  # type: ignore[arg-type]
