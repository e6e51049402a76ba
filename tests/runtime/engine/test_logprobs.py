"""Log-probabilities of an output, against float64 over the model's own logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import feed

pytestmark = pytest.mark.parity

PROMPT = "One, two, three, four. One, two,"
SAMPLED = SamplingConfig(temperature=1.3, top_p=0.95)


@pytest.fixture(scope="module")
def engine(small_bundle: Path) -> Iterator[Engine]:
    with load(small_bundle) as found:
        yield found


def exact(engine: Engine, tokens: list[int], n: int) -> Any:
    """Returns the log-probabilities of all tokens before each of the last ``n``, in float64."""
    sequence = engine.new_sequence()
    rows = run_passes(feed(sequence, tokens[:-1], n))
    logits = rows.logits.astype(np.float64)
    sequence.close()
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["plain", "lookup", "auto"])
@pytest.mark.parametrize("n_top", [0, 5, 20])
@pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        (SamplingConfig(), {}),
        (SAMPLED, {}),
        (SamplingConfig(frequency_penalty=2.0), {}),
        (SamplingConfig(), {"regex": "[A-Z]{12}"}),
    ],
    ids=["greedy", "sampled", "penalty", "regex"],
)
def test_they_are_the_model_s(
    engine: Engine, method: str, n_top: int, sampling: SamplingConfig, fields: dict[str, Any]
) -> None:
    config = GenerationConfig(
        max_new_tokens=12, sampling=sampling, method=method, logprobs=n_top, seed=3, **fields
    )
    result = engine.generate(PROMPT, config)
    reported = result.logprobs
    assert [one.token for one in reported] == list(result.token_ids)
    rows = exact(engine, [*engine.encode(PROMPT), *result.token_ids], len(reported))
    for one, row in zip(reported, rows, strict=True):
        assert one.logprob == pytest.approx(row[one.token], abs=1e-4)
        likeliest = np.argsort(-row, kind="stable")[:n_top]
        assert [token for token, _ in one.top] == likeliest.tolist()
        assert [p for _, p in one.top] == pytest.approx(row[likeliest].tolist(), abs=1e-4)


def test_asking_changes_no_text(engine: Engine) -> None:
    plain = GenerationConfig(max_new_tokens=12, sampling=SAMPLED)
    asked = GenerationConfig(max_new_tokens=12, sampling=SAMPLED, logprobs=20)
    assert engine.generate(PROMPT, plain).text == engine.generate(PROMPT, asked).text
    assert engine.generate(PROMPT, plain).logprobs == ()


@pytest.mark.parametrize("fields", [{"logprobs": -1}, {"logprobs": 21}, {"verifier": "leviathan"}])
def test_what_cannot_be_reported(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="logprobs"):
        GenerationConfig(**{"logprobs": 1, **fields})
