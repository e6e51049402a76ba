"""Requests that an engine refuses before anything is computed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

MakeEngine = Callable[..., Engine]
USER = [{"role": "user", "content": "The quick brown fox"}]


def test_empty_prompt(make_engine: MakeEngine) -> None:
    with pytest.raises(SessionError, match="prompt is empty"):
        make_engine().generate("")
    one = GenerationConfig(max_new_tokens=1)
    assert make_engine(opening=(0,)).generate("", one).n_prompt_tokens == 1


def test_messages_without_template(make_engine: MakeEngine) -> None:
    engine = make_engine(template=None)
    for call in (lambda: engine.generate(USER), engine.conversation):
        with pytest.raises(SessionError, match="no chat template"):
            call()


@pytest.mark.parametrize("ids", [[5, -1], [5, 10**6]])
def test_prompt_ids_outside_the_vocabulary(make_engine: MakeEngine, ids: list[int]) -> None:
    with pytest.raises(SessionError, match=f"holds token {ids[1]}, expected 0 to"):
        make_engine().generate(ids)


def test_request_for_unknown_tokens(make_engine: MakeEngine) -> None:
    with pytest.raises(ConfigError, match="stop_token_ids names token 1000000"):
        make_engine().stream("fox", GenerationConfig(stop_token_ids=(10**6,)))
