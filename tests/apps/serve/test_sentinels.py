"""Values that stand for something else mean what the server means that defined them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.apps.serve.api import (
    anthropic,
    llama_server,
    ollama,
    openai_chat,
    openai_completions,
    openai_responses,
)
from edgedec.apps.serve.api.endpoint import AnswerHead
from edgedec.apps.serve.core import ServeError
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.sampling.gbnf import lark_grammar

ASK = [{"role": "user", "content": "Hi"}]
NEVER = float("-inf")
BODIES: dict[Any, dict[str, Any]] = {
    openai_chat.ENDPOINT: {"messages": ASK},
    openai_completions.ENDPOINT: {"prompt": "Hi"},
    openai_responses.ENDPOINT: {"input": "Hi"},
    anthropic.ENDPOINT: {"messages": ASK, "max_tokens": 4},
    ollama.CHAT: {"model": "a", "messages": ASK},
    ollama.GENERATE: {"model": "a", "prompt": "Hi"},
    llama_server.COMPLETION: {"prompt": "Hi"},
    llama_server.INFILL: {"input_prefix": "Hi"},
}
ENDPOINTS = list(BODIES)
PATHS = [endpoint.path for endpoint in ENDPOINTS]


def settings_of(endpoint: Any, **fields: Any) -> dict[str, Any]:
    body = BODIES[endpoint]
    fields = {"options": fields} if endpoint.path.startswith("/api/") else fields
    asked = endpoint.read(json.dumps({**body, **fields}).encode(), AnswerHead("1", 0))
    settings = dict(asked.request.settings)
    GenerationConfig.from_dict(settings)  # it is what the engine takes
    return settings


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=PATHS)
class TestEverywhere:
    def test_seed(self, endpoint: Any) -> None:
        assert "seed" not in settings_of(endpoint, seed=-1)
        assert "seed" not in settings_of(endpoint, seed=-1.0)
        assert settings_of(endpoint, seed=0)["seed"] == 0
        assert settings_of(endpoint, seed=7.0)["seed"] == 7
        is_llama = endpoint in (llama_server.COMPLETION, llama_server.INFILL)
        assert ("seed" in settings_of(endpoint, seed=2**32 - 1)) != is_llama

    @pytest.mark.parametrize(
        ("fields", "expected"),
        [
            ({"top_k": -1}, {"top_k": 0}),
            ({"top_k": 0}, {"top_k": 0}),
            ({"top_k": 40.0}, {"top_k": 40}),
            ({"top_p": 0}, {"top_p": 1.0, "top_k": 1}),
            ({"top_p": 0.0, "top_k": 40}, {"top_p": 1.0, "top_k": 1}),
            ({"top_p": 1}, {"top_p": 1.0}),
        ],
    )
    def test_truncation(self, endpoint: Any, fields: Any, expected: Any) -> None:
        assert settings_of(endpoint, **fields)["sampling"] == expected

    @pytest.mark.parametrize("value", [2.5, True, "2", [2]])
    def test_numbers_that_are_not_whole(self, endpoint: Any, value: Any) -> None:
        with pytest.raises(ServeError, match="top_k"):
            settings_of(endpoint, top_k=value)

    def test_empty_constraints(self, endpoint: Any) -> None:
        assert "grammar" not in settings_of(endpoint, grammar="")
        assert "regex" not in settings_of(endpoint, regex="")

    def test_grammars_of_llama_cpp(self, endpoint: Any) -> None:
        found = settings_of(endpoint, grammar='root ::= "yes" | "no"')["grammar"]
        assert found.strip().startswith("%llguidance")
        assert settings_of(endpoint, grammar="start: /a/")["grammar"] == "start: /a/"


@pytest.mark.parametrize(
    ("endpoint", "name", "n_most"),
    [
        (openai_chat.ENDPOINT, "max_tokens", None),
        (openai_chat.ENDPOINT, "max_completion_tokens", None),
        (openai_completions.ENDPOINT, "max_tokens", None),
        (openai_responses.ENDPOINT, "max_output_tokens", None),
        (llama_server.COMPLETION, "n_predict", None),
        (llama_server.INFILL, "n_predict", None),
        (ollama.CHAT, "num_predict", None),
        (ollama.GENERATE, "num_predict", None),
    ],
)
def test_no_limit(endpoint: Any, name: str, n_most: Any) -> None:
    for value in (-1, -1.0):
        assert settings_of(endpoint, **{name: value}).get("max_new_tokens") is n_most
    assert settings_of(endpoint, **{name: 2.0})["max_new_tokens"] == 2


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        (openai_chat.ENDPOINT, {"max_tokens": 0}),
        (openai_chat.ENDPOINT, {"max_completion_tokens": 0, "max_tokens": 5}),
        (openai_chat.ENDPOINT, {"max_tokens": -2}),
        (openai_responses.ENDPOINT, {"max_output_tokens": 0}),
        (anthropic.ENDPOINT, {"max_tokens": -1}),  # as Anthropic does
        (anthropic.ENDPOINT, {"max_tokens": 0}),
    ],
)
def test_limits_that_are_none(endpoint: Any, fields: Any) -> None:
    with pytest.raises(ServeError, match="tokens"):
        settings_of(endpoint, **fields)


@pytest.mark.parametrize(
    ("bias", "expected"),
    [
        ({"5": 1.5}, {5: 1.5}),
        ({"5": -100}, {5: NEVER}),
        ([[5, 1.5], [6, -1]], {5: 1.5, 6: -1.0}),
        ([[5, False]], {5: NEVER}),
        ([["5", 2]], {5: 2.0}),
    ],
)
def test_biases(bias: Any, expected: Any) -> None:
    for endpoint in (llama_server.COMPLETION, openai_chat.ENDPOINT, openai_completions.ENDPOINT):
        assert settings_of(endpoint, logit_bias=bias)["sampling"]["logit_bias"] == expected
        assert "sampling" not in settings_of(endpoint, logit_bias=[])


@pytest.mark.parametrize("bias", [[["Hello", 1]], {"Hello": 1}, [[5]], [[5, 1, 2]], [[-1, 1]]])
def test_biases_of_what_is_no_token(bias: Any) -> None:
    with pytest.raises(ServeError, match="logit_bias"):
        settings_of(llama_server.COMPLETION, logit_bias=bias)


@pytest.mark.parametrize("stop", ["", [""], ["", ""]])
def test_empty_stop_texts(stop: Any) -> None:
    for endpoint in (llama_server.COMPLETION, ollama.GENERATE):
        assert not settings_of(endpoint, stop=stop).get("stop")
    assert settings_of(ollama.CHAT, stop=["", "a"])["stop"] == ["a"]


def test_what_looks_like_gbnf_and_is_none() -> None:
    with pytest.raises(ConfigError, match="GBNF"):
        lark_grammar("root ::= (")
    assert lark_grammar("start: /::=/") == "start: /::=/"


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("grammar", "texts"),
    [
        ('root ::= "yes" | "no"', {"yes", "no"}),
        ('root ::= "a" digit{2}\ndigit ::= [0-9]\n', {f"a{n:02}" for n in range(100)}),
        ('# a comment\nroot ::= item+\nitem ::= "x"', {"x" * n for n in range(1, 9)}),
    ],
)
def test_an_answer_follows_gbnf(server: Any, grammar: str, texts: set[str]) -> None:
    body = {"prompt": "Answer:", "grammar": grammar, "n_predict": 8, "temperature": 0}
    status, found = server.ask("POST", "/completion", body)
    assert status == 200, found
    assert found["content"] in texts


@pytest.mark.e2e
def test_random_seeds_are_random(server: Any) -> None:
    body = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 1.5, "seed": -1}
    texts = {server.ask("POST", "/completion", body)[1]["content"] for _ in range(3)}
    assert len(texts) > 1
