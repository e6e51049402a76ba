"""Ollama's interface, asked by its own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from edgedec.apps.serve.api.ollama import LineFramer, seconds
from edgedec.apps.serve.core import ServeError, TextDelta
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

ollama = pytest.importorskip("ollama")
pytestmark = pytest.mark.e2e

SKY = [{"role": "user", "content": "Why is the sky blue?"}]
GREEDY = {"temperature": 0, "num_predict": 16}
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["days"],
    "additionalProperties": False,
}


@pytest.fixture
def client(server: Any) -> Any:
    return ollama.Client(host=server.url)


def test_models_are_listed_and_shown(client: Any, server: Any) -> None:
    assert [model.model for model in client.list().models] == ["smollm2"]
    shown = client.show("smollm2:latest")
    assert "tools" in shown.capabilities
    assert shown.modelinfo["general.architecture"] == "llama"
    assert shown.modelinfo["llama.context_length"] == 8192
    assert server.ask("GET", "/api/version")[1] == {"version": "0.14.0"}


def test_an_answer_is_that_of_the_engine(client: Any, engine: Engine) -> None:
    text = engine.generate(SKY, GenerationConfig(max_new_tokens=16)).text
    answer = client.chat("smollm2", SKY, options=GREEDY)
    assert (answer.message.content, answer.done_reason) == (text, "length")
    assert (answer.eval_count, answer.prompt_eval_count) == (16, len(engine.encode(SKY)))
    pieces = list(client.chat("smollm2", SKY, options=GREEDY, stream=True))
    assert "".join(piece.message.content for piece in pieces) == text
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [model.model for model in client.ps().models] == ["smollm2"]


def test_text_may_be_raw_or_a_chat(client: Any, engine: Engine) -> None:
    config = GenerationConfig(max_new_tokens=16)
    raw = client.generate("smollm2", "One, two,", raw=True, options=GREEDY)
    assert raw.response == engine.generate("One, two,", config).text
    reported = client.generate("smollm2", SKY[0]["content"], options=GREEDY)
    assert reported.response == engine.generate(SKY, config).text


def test_an_answer_follows_its_schema(client: Any) -> None:
    answer = client.chat("smollm2", SKY, format=SCHEMA, options={**GREEDY, "num_predict": 60})
    assert isinstance(json.loads(answer.message.content)["days"], int)


def test_problems_have_ollama_s_form(client: Any) -> None:
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat("llama9", SKY)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="temperature"):
        client.chat("smollm2", SKY, options={"temperature": -1.0})
    with pytest.raises(ollama.ResponseError, match="keep_alive"):
        client.chat("smollm2", SKY, keep_alive="soon")


def test_clients_in_an_event_loop(server: Any) -> None:
    async def ask() -> str:
        client = ollama.AsyncClient(host=server.url)
        stream = await client.chat("smollm2", SKY, options=GREEDY, stream=True)
        return "".join([piece.message.content async for piece in stream])

    assert asyncio.run(ask())


def test_a_model_goes_when_nobody_wants_it(make_server: Any, until: Any) -> None:
    server = make_server()
    client = ollama.Client(host=server.url)
    client.chat("smollm2", SKY, options={"num_predict": 1}, keep_alive=0)
    until(lambda: not client.ps().models)
    client.chat("smollm2", SKY, options={"num_predict": 1}, keep_alive=-1)
    assert [model.model for model in client.ps().models] == ["smollm2"]


@pytest.mark.parametrize(
    ("text", "wanted"), [("5m", 300), ("1h30m", 5400), (-1, -1), ("10", 10), ("250ms", 0.25)]
)
def test_durations(text: Any, wanted: float) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "5 m", "m5"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ServeError, match="keep_alive"):
        seconds(text)


def test_a_piece_is_one_line_for_every_client() -> None:
    done = LineFramer({}, lambda choice: {"text": choice.text}).of(TextDelta(0, "a\u2028b\x85c"))
    (line,) = done
    assert len(line.decode().splitlines()) == 1
    assert json.loads(line)["text"] == "a\u2028b\x85c"
