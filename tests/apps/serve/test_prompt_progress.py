"""Streams say how much of a long prompt is read, to those who ask, in llama-server's field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgedec.runtime.engine.engine import Engine

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e

ASKED = {"return_progress": True}


def long_text(beginning: str) -> str:
    return beginning + " and then one more" * 100


def progress_of(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [part["prompt_progress"] for part in parts if "prompt_progress" in part]


def events(server: Any, path: str, **body: Any) -> list[dict[str, Any]]:
    _, _, raw = server.ask_raw("POST", path, {"stream": True, "temperature": 0, **body})
    lines = [line[6:] for line in raw.decode().split("\n\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


def test_openai_s_client_reads_the_progress_of_a_chat(server: Any, engine: Engine) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    messages = [{"role": "user", "content": long_text("A dog")}]
    asked = {"model": "smollm2", "messages": messages, "max_tokens": 4, "temperature": 0}
    chunks = list(client.chat.completions.create(stream=True, extra_body=ASKED, **asked))
    found = progress_of([chunk.to_dict() for chunk in chunks])
    n_prompt = len(engine.encode(messages))
    reads = [one["processed"] for one in found]
    assert len(reads) > 2
    assert reads == sorted(set(reads))
    assert reads[-1] == n_prompt
    assert {one["total"] for one in found} == {n_prompt}
    assert len({one["cache"] for one in found}) == 1
    assert found[0]["cache"] < reads[0]
    times = [one["time_ms"] for one in found]
    assert times == sorted(times)
    assert times[-1] > 0
    # The answer is what it is without, and what the client adds up is no different.
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    plain = list(client.chat.completions.create(stream=True, **asked))
    assert text == "".join(chunk.choices[0].delta.content or "" for chunk in plain)
    assert progress_of([chunk.to_dict() for chunk in plain]) == []
    with client.chat.completions.stream(extra_body=ASKED, **asked) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
    assert "".join(deltas) == text


def test_what_was_computed_before_counts_as_cached(server: Any) -> None:
    prompt = long_text("A cat")
    first = progress_of(events(server, "/completion", prompt=prompt, n_predict=1, **ASKED))
    longer = prompt + " and another" * 80
    again = progress_of(events(server, "/completion", prompt=longer, n_predict=1, **ASKED))
    assert again[0]["cache"] >= first[-1]["total"] - 1
    assert again[0]["cache"] < again[0]["processed"] <= again[-1]["total"] == again[-1]["processed"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "A bird", "max_tokens": 1}),
        ("/v1/completions", {"prompt": ["A bee", "A bat"], "max_tokens": 1}),
        ("/completions", {"prompt": "A bug", "n_predict": 1}),
    ],
)
def test_other_interfaces(server: Any, path: str, fields: dict[str, Any]) -> None:
    found = events(server, path, **fields, **ASKED)
    assert progress_of(found)[-1]["processed"] == progress_of(found)[-1]["total"]
    assert progress_of(events(server, path, **fields)) == []


def test_whole_answers_have_none(server: Any) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1, **ASKED}
    status, answer = server.ask("POST", "/v1/chat/completions", body)
    assert status == 200
    assert "prompt_progress" not in answer
