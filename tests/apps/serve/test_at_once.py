"""Several requests at once: each gets what it gets alone, and those that go away harm nobody."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

pytestmark = pytest.mark.e2e

N_TOKENS = 24
PROMPTS = [
    "One, two,",
    "Once upon a time",
    "The capital of France is",
    "def add(a, b):",
    "Dear Sir or Madam,",
    "The capital of Italy is",
    "1 + 1 = 2\n2 + 2 =",
    "word " * 300,  # several chunks of prompt
]


def request(prompt: str, index: int) -> dict[str, Any]:
    """Every second one is sampled, with a seed."""
    sampled = {"temperature": 0.8, "seed": index} if index % 2 else {"temperature": 0}
    return {"prompt": prompt, "n_predict": N_TOKENS, "cache_prompt": True, **sampled}


def ask_at_once(server: Any, requests: Sequence[dict[str, Any]]) -> list[str]:
    def ask(body: dict[str, Any]) -> str:
        status, found = server.ask("POST", "/completion", body)
        assert status == 200, found
        return str(found["content"])

    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(ask, requests))


def ask_for_endless(connection: socket.socket, prompt: str) -> None:
    body = {"prompt": prompt, "n_predict": 8000, "stream": True, "ignore_eos": True}
    data = json.dumps(body).encode()
    head = "POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    connection.sendall(head.format(len(data)).encode() + data)


@pytest.fixture(scope="module")
def alone(server: Any) -> list[str]:
    """The answers to all prompts, one after the other."""
    return [ask_at_once(server, [request(prompt, i)])[0] for i, prompt in enumerate(PROMPTS)]


def test_the_answers_alone_are_the_engine_s(alone: list[str], engine: Engine) -> None:
    config = GenerationConfig(max_new_tokens=N_TOKENS)
    for i in range(0, len(PROMPTS), 2):
        assert alone[i] == engine.generate(PROMPTS[i], config).text


@pytest.mark.parametrize("method", ["plain", "auto"])
def test_eight_at_once_get_what_they_get_alone(server: Any, alone: list[str], method: str) -> None:
    requests = [{**request(prompt, i), "method": method} for i, prompt in enumerate(PROMPTS)]
    assert ask_at_once(server, requests) == alone


def test_those_that_go_away_change_nothing_for_the_others(
    server: Any, alone: list[str], until: Any
) -> None:
    places = range(0, len(PROMPTS), 2)
    leaving = [server.connect() for _ in range(4)]
    for i, connection in enumerate(leaving):
        ask_for_endless(connection, PROMPTS[2 * i + 1])
    until(lambda: server.service.n_running == len(leaving))
    with ThreadPoolExecutor(1) as pool:
        staying = pool.submit(ask_at_once, server, [request(PROMPTS[i], i) for i in places])
        for connection in leaving:
            connection.recv(1)  # its answer has begun
            connection.close()
        assert staying.result() == [alone[i] for i in places]
    until(lambda: server.service.n_running == 0)


def test_one_that_goes_away_before_its_turn_waits_for_nobody(make_server: Any, until: Any) -> None:
    server = make_server(max_parallel=1)
    with server.connect() as first:
        ask_for_endless(first, PROMPTS[0])
        assert first.recv(1)
        with server.connect() as second:
            ask_for_endless(second, PROMPTS[1])
            until(lambda: server.service.n_running == 2)
        until(lambda: server.service.n_running == 1)
        gone = 'edgedec:requests_total{model="smollm2",status="499"} 1.0'
        until(lambda: gone in server.service.metrics.text(0, 0))
        none = 'edgedec:tokens_predicted_total{model="smollm2"} 0.0'  # the first goes on
        assert none in server.service.metrics.text(0, 0)
