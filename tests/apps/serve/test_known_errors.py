"""Errors that the classes of client libraries know, and addresses that are nearly right."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from edgedec.apps.serve.web import error_shape

pytestmark = pytest.mark.e2e

LONG = [{"role": "user", "content": "hello " * 8300}]
VERY_LONG = [{"role": "user", "content": "hello " * 30_000}]
CODEX_OLDEST = (0, 13, 4)  # openai/codex: codex-rs/ollama, MIN_OLLAMA_VERSION of Responses


@pytest.mark.parametrize("messages", [LONG, VERY_LONG])
@pytest.mark.parametrize("stream", [False, True])
def test_openai_s_code(server: Any, messages: Any, stream: bool) -> None:
    bodies = {
        "/v1/chat/completions": {"messages": messages, "stream": stream},
        "/v1/completions": {"prompt": messages[0]["content"], "stream": stream},
        "/v1/responses": {"input": messages, "stream": stream},
        "/completion": {"prompt": messages[0]["content"], "stream": stream},
    }
    for path, body in bodies.items():
        status, document = server.ask("POST", path, body)
        error = document["error"]
        assert (status, error["code"]) == (400, "context_length_exceeded"), path
        assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 8192)
        count = rf"it has (more than )?{error['n_prompt_tokens']} tokens and"
        found = re.search(count, error["message"])
        assert found is not None, path
        assert found[1] or messages is LONG, path


@pytest.mark.parametrize("messages", [LONG, VERY_LONG])
@pytest.mark.parametrize("stream", [False, True])
def test_claude_code_s_pattern(server: Any, messages: Any, stream: bool) -> None:
    body = {"messages": messages, "max_tokens": 4, "stream": stream}
    status, document = server.ask("POST", "/v1/messages", body)
    assert (status, document["error"]["type"]) == (400, "invalid_request_error")
    pattern = r"prompt is too long: (\d+) tokens > (\d+) maximum"
    found = re.fullmatch(pattern, document["error"]["message"])
    assert found is not None
    assert int(found[1]) > int(found[2]) == 8192


def test_tokens_that_do_not_fit_are_counted(server: Any) -> None:
    def counted(n: int) -> int:
        body = {"messages": [{"role": "user", "content": "hello " * n}]}
        status, document = server.ask("POST", "/v1/messages/count_tokens", body)
        assert status == 200, document
        found: int = document["input_tokens"]
        return found

    around = counted(100) - 100
    for n in (8_300, 30_000, 100_000):
        assert counted(n) == n + around


def test_langchain_s_classes(server: Any) -> None:
    exceptions = pytest.importorskip("langchain_core.exceptions")
    openai = pytest.importorskip("langchain_openai")
    anthropic = pytest.importorskip("langchain_anthropic")
    known = {"api_key": "none", "max_retries": 0}
    models = [
        openai.ChatOpenAI(model="smollm2", base_url=f"{server.url}/v1", **known),
        openai.ChatOpenAI(
            model="smollm2", base_url=f"{server.url}/v1", use_responses_api=True, **known
        ),
        anthropic.ChatAnthropic(model="smollm2", base_url=server.url, max_tokens=4, **known),
    ]
    for model in models:
        with pytest.raises(exceptions.ContextOverflowError):
            model.invoke(LONG[0]["content"])
        with pytest.raises(exceptions.ContextOverflowError):
            list(model.stream(LONG[0]["content"]))


@pytest.mark.parametrize(
    ("provider", "suffix"),
    [("openai", "/v1"), ("hosted_vllm", "/v1"), ("anthropic", "")],  # none for Ollama
)
def test_litellm_s_classes(server: Any, provider: str, suffix: str) -> None:
    litellm = pytest.importorskip("litellm")
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            model=f"{provider}/smollm2",
            messages=LONG,
            api_base=server.url + suffix,
            api_key="none",
            max_tokens=4,
            num_retries=0,
        )


def test_ollama_s_version_is_one_that_codex_accepts(server: Any) -> None:
    version = server.ask("GET", "/api/version")[1]["version"]
    assert tuple(map(int, version.split("."))) >= CODEX_OLDEST


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("//v1/chat/completions", "/v1/chat/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("//v1//messages", "/v1/messages"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/chat/completions/chat/completions", "/v1/chat/completions"),
        ("/openai/v1/chat/completions", "/v1/chat/completions"),
        ("/V1/Chat/Completions", "/v1/chat/completions"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/v1/completion", "/v1/completions"),
        ("/messages", "/v1/messages"),
        ("/anthropic/v1/messages", "/v1/messages"),
        ("/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/responses", "/v1/responses"),
        ("/embeddings", "/v1/embeddings"),
        ("/v1/tokenize", "/tokenize"),
        ("/v1/api/chat", "/api/chat"),
        ("/api/chats", "/api/chat"),
        ("/v1/images/generations", None),
        ("/api/pull", None),
        ("/v1", None),
        ("/" + "v1/" * 3000, None),
    ],
)
def test_addresses_that_are_nearly_right(server: Any, path: str, near: str | None) -> None:
    status, _, text = server.ask_raw("POST", path, {})
    assert status == 404
    hint = "" if near is None else f"; did you mean {near}?"
    problem = f"there is no POST {path[:80]} here{hint}"
    found = json.loads(text)
    assert found.get("error") == problem or found["error"]["message"] == problem
    assert found.keys() == error_shape(near or path)(_problem()).keys()


def _problem() -> Any:
    from edgedec.apps.serve.core import invalid

    return invalid("-")
