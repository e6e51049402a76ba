"""The application of Ray Serve: two replicas of SmolLM2 on a Ray of this machine."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra ray")
pytest.importorskip("starlette")

from edgedec.models.errors import EdgedecError

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

KEY = "a-key"
Ask = Callable[..., tuple[int, bytes]]


@pytest.fixture(scope="module")
def ask(smollm2_bundle: Path) -> Iterator[Ask]:
    """What asks the application, with its key; it runs until the tests are over."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import serve

    from edgedec.apps.serve.ray_app import RayOptions, app

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = RayOptions(models=f"smollm2={smollm2_bundle}", replicas=2, api_keys=KEY)
        serve.run(app(options))

        def ask(path: str, body: Any, key: str = KEY) -> tuple[int, bytes]:
            connection = HTTPConnection("127.0.0.1", port, timeout=120)
            headers = {"Authorization": f"Bearer {key}"}
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            found = response.status, response.read()
            connection.close()
            return found

        yield ask
    finally:
        serve.shutdown()
        ray.shutdown()


def chat(text: str, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": 8, "temperature": 0, **fields}


def test_texts_are_those_of_the_engine_alone_and_beginnings_come_back_to_their_replica(
    ask: Ask, engine: Any
) -> None:
    from ray import serve

    states = serve.status().applications["default"].deployments["Models"].replica_states
    assert {str(getattr(k, "value", k)): n for k, n in states.items()} == {"RUNNING": 2}
    for i in range(5):
        text = f"{i} {'river stone cloud ' * 40}"
        prompt = chat(text)["messages"]
        expected = engine.generate(prompt, max_new_tokens=8, temperature=0.0).text
        cached = []
        for _ in range(2):
            status, found = ask("/v1/chat/completions", chat(text))
            assert status == 200
            answer = json.loads(found)
            assert answer["choices"][0]["message"]["content"] == expected
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached[0] < 64 <= cached[1]


def test_a_stream_comes_piece_by_piece(ask: Ask, engine: Any) -> None:
    body = chat("Name three rivers.", stream=True)
    expected = engine.generate(body["messages"], max_new_tokens=8, temperature=0.0).text
    status, found = ask("/v1/chat/completions", body)
    assert status == 200
    lines = [line for line in found.decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    deltas = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in deltas if c["choices"])
    assert len(lines) > 4
    assert text == expected


def test_problems_are_reported_as_the_server_tells_them(ask: Ask) -> None:
    status, found = ask("/v1/chat/completions", chat("Hi", n=-1))
    assert (status, json.loads(found)["error"]["type"]) == (400, "invalid_request_error")
    status, found = ask("/v1/chat/completions", chat("Hi"), key="another")
    assert (status, json.loads(found)["error"]["type"]) == (401, "authentication_error")
    status, found = ask("/v1/nowhere", {})
    assert status == 404


def test_a_model_that_is_none_is_refused_before_anything_starts(tmp_path: Path) -> None:
    from edgedec.apps.serve.ray_app import RayOptions, app

    with pytest.raises(EdgedecError):
        app(RayOptions(models=str(tmp_path)))
