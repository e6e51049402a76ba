"""Switching in which the target model's rows of the draft model's words are predicted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import kernels
from edgedec.labs.prefill.auxiliary import AuxiliaryModel
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.switching import Switching
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.pool import SequencePool
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.token_map import TokenMap

from ...draft_toys import open_stream
from ...mapped_pair import CONTEXT, PROMPT, VOCAB, Pair

SETTING = "margin:threshold=0.95,window=1,dwell=4"
ASKED = GenerationConfig(max_new_tokens=48)


@pytest.fixture(scope="module", params=["float16", "int8"])
def twins(
    request: pytest.FixtureRequest, make_source: Any, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    """A model beside itself, whose rows are predicted nearly as they are."""
    if not kernels.has_library():
        pytest.skip("the kernel library is not built")
    source = make_source(max_positions=CONTEXT, n_layers=3)
    return Pair(tmp_path_factory.mktemp("twins"), [source, source], request.param)


def began(pair: Pair, mode: str, sequence: TokenSequence) -> tuple[Stream, SequencePool]:
    """Returns a stream that two models take turns at, and the sequences of the draft model."""
    pool = SequencePool(pair.models[0], CONTEXT)
    role = DraftRole(pool, TokenMap.same(VOCAB, VOCAB), VOCAB)
    auxiliary = AuxiliaryModel(pool, pair.configs[0], pair.maps) if mode == "predict" else None
    setting = SwitchConfig.parse(f"{SETTING},mode={mode}")
    method = Switching(role, setting, copies=False, auxiliary=auxiliary)
    return open_stream(sequence, PROMPT, ASKED, method), pool


def test_the_target_model_computes_one_row_a_turn(twins: Pair) -> None:
    sequence, counted = twins.sequence(1), list[int]()
    begin = sequence.begin

    def counting(wanted: Pass) -> None:
        counted.append(len(wanted.tree))
        begin(wanted)

    sequence.begin = counting  # type: ignore[method-assign]
    stream, _ = began(twins, "predict", sequence)
    list(stream)
    result = stream.result
    n_prompt = len(PROMPT)
    assert sum(counted) - n_prompt == len(counted) - sum(np.cumsum(counted) <= n_prompt)
    assert result.switch["n_predicted"] > 8
    n_read = n_prompt + len(result.origins) - 1 - result.origins[::-1].index("target")
    assert sum(counted) + result.switch["n_predicted"] == n_read
    assert result.switch["n_switches"] > 2
    assert not result.lossless
    trusted, _ = began(twins, "trust", twins.sequence(1))
    list(trusted)
    assert trusted.result.switch["n_predicted"] == 0
    assert result.token_ids == trusted.result.token_ids  # what is predicted is all but exact


def test_what_was_predicted_is_forgotten_and_then_computed(twins: Pair) -> None:
    sequence = twins.sequence(1)
    stream, pool = began(twins, "predict", sequence)
    list(stream)
    text = [*PROMPT, *stream.result.token_ids]
    assert sequence.n_exact == sequence.n_tokens < len(text)
    n_missed = 2 * len(text) - sequence.n_tokens - pool.latest.n_tokens
    assert stream.catch_up() == n_missed
    assert list(sequence.tokens) == list(pool.latest.tokens) == text
    assert sequence.n_exact == len(text)


def test_maps_are_needed() -> None:
    with pytest.raises(ConfigError, match="adadec has one model only"):
        SwitchConfig(policy="adadec", mode="predict")


@pytest.mark.slow
def test_maps_of_a_real_bundle_are_needed(smollm2_bundle: Path) -> None:
    import edgedec

    options = edgedec.EngineOptions(draft=str(smollm2_bundle))
    asked = GenerationConfig(switch=SwitchConfig.parse("ead:threshold=1,mode=predict"))
    with (
        edgedec.load(smollm2_bundle, options) as engine,
        pytest.raises(ConfigError, match="switch mode predict needs KV maps from the draft model"),
    ):
        engine.stream("Hi", asked)
