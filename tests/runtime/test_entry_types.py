"""Whatever a public entry is given, it takes it or refuses it in one line that says what it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.models.errors import EdgedecError
from edgedec.runtime.config import SwitchConfig

pytestmark = pytest.mark.robustness

CONFIGS = (
    edgedec.EngineOptions,
    edgedec.GenerationConfig,
    edgedec.SamplingConfig,
    edgedec.SpeculationConfig,
    edgedec.SuggestConfig,
    SwitchConfig,
)
FIELDS = [(cls, field.name) for cls in CONFIGS for field in dataclasses.fields(cls)]
ODD = [b"x", object(), 1j, float("nan"), len, {1j: b""}, [object()], "\0" * 500]
"""Values that no field and no parameter may have."""

NAMES = (
    "method", "verifier", "regex", "grammar", "prefix", "prediction", "prefix_group", "stop",
    "dry_sequence_breakers",
)  # fmt: skip
"""Fields of text that is looked at only once there is a model."""


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(EdgedecError) as caught:
        call()
    line = str(caught.value)
    assert "\n" not in line
    assert "\0" not in line
    assert len(line) < 300
    return line


@pytest.mark.parametrize(("cls", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_fields(cls: Any, name: str) -> None:
    for value in ODD:
        if isinstance(value, str) and name in NAMES:
            continue
        assert name in refused(lambda value=value: cls(**{name: value}))


@pytest.mark.parametrize(
    ("cls", "name", "value"),
    [
        (edgedec.EngineOptions, "prefix_cache_mb", -1),
        (edgedec.EngineOptions, "prefix_cache_mb", True),
        (edgedec.EngineOptions, "affinity", ["0"]),
        (edgedec.EngineOptions, "affinity", "01"),
        (edgedec.EngineOptions, "store", True),
        (edgedec.EngineOptions, "store", ""),
        (edgedec.EngineOptions, "is_store_growing", 1),
        (edgedec.GenerationConfig, "stop", None),
        (edgedec.GenerationConfig, "stop", {"a": 1}),
        (edgedec.GenerationConfig, "stop_token_ids", {1: 2}),
        (edgedec.GenerationConfig, "stop_token_ids", [True]),
        (edgedec.SamplingConfig, "logit_bias", [(1, 2.0)]),
        (edgedec.SuggestConfig, "k", True),
        (edgedec.SuggestConfig, "k", 9),
        (edgedec.SuggestConfig, "n_tokens", "8"),
        (edgedec.SuggestConfig, "stop_token_ids", 5),
        (edgedec.SuggestConfig, "max_entropy", True),
        (edgedec.SuggestConfig, "min_log_prob", "0"),
    ],
)
def test_values_of_another_type(cls: Any, name: str, value: object) -> None:
    assert name in refused(lambda: cls(**{name: value}))


def test_load(tmp_path: Path) -> None:
    for value in [*ODD, None, 5, ""]:
        assert "the bundle is" in refused(lambda value=value: edgedec.load(value))
    for value in [*ODD, {}, edgedec.GenerationConfig()]:
        assert "options" in refused(lambda value=value: edgedec.load(tmp_path, value))
    assert "on_progress is 5" in refused(lambda: edgedec.load(tmp_path, None, 5))  # type: ignore[arg-type]


def test_engine(make_engine: Callable[..., edgedec.Engine], tmp_path: Path) -> None:
    engine: Any = make_engine()
    talk, path = engine.conversation(), tmp_path / "of.session"
    ended = engine.stream("hi", edgedec.GenerationConfig(max_new_tokens=1))
    list(ended)
    for value in [*ODD, 5, (), {}]:
        for call in (engine.generate, engine.stream, engine.suggest, talk.send):
            assert "config is" in refused(lambda call=call, value=value: call("hi", value))
        assert "config is" in refused(lambda value=value: engine.conversation(None, value))
        if value is not len:
            for call in (engine.generate, engine.stream, engine.suggest):
                line = refused(lambda call=call, value=value: call("hi", None, value))
                assert "on_progress is" in line
        if not isinstance(value, str):
            assert "system is" in refused(lambda value=value: engine.conversation(value))
            for call in (engine.generate, engine.suggest, engine.encode):
                assert refused(lambda call=call, value=value: call(value))
        for call in (engine.save_session, engine.load_session):
            assert "the session is" in refused(lambda call=call, value=value: call(value))
        if value != ():
            assert "text is" in refused(lambda value=value: engine.borrowed(value).__enter__())
        if value is not len:
            assert "is_over is" in refused(lambda value=value: ended.catch_up(value))
        if not isinstance(value, str):
            assert "the text to answer is" in refused(lambda value=value: talk.send(value))
        if not isinstance(value, str | list | tuple | dict):
            asked = [{"role": "user", "content": value}]
            assert "the content of a message" in refused(lambda asked=asked: engine.encode(asked))
        if value != ():
            assert "text is" in refused(lambda value=value: engine.learn(value))
            assert "prompt is" in refused(lambda value=value: engine.save_session(path, value))
    assert "key 1j" in refused(lambda: engine.encode([{"role": "user", "content": "", 1j: 1}]))
    assert list(tmp_path.iterdir()) == []
    assert engine.generate("hi", edgedec.GenerationConfig(max_new_tokens=2)).n_new_tokens
