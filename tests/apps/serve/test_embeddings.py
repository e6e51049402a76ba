"""Vectors, asked for by OpenAI's and Ollama's own clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import EngineOptions, load
from edgedec.runtime.engine.engine import Engine

openai = pytest.importorskip("openai")
ollama = pytest.importorskip("ollama")
pytestmark = pytest.mark.e2e

TEXTS = ["Bread needs flour.", "Rockets need fuel."]


def test_openai_s_vectors_are_the_engine_s(server: Any, engine: Engine) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    wanted = engine.embed(TEXTS)
    packed = client.embeddings.create(model="smollm2", input=TEXTS)  # the client asks for base64
    assert np.array_equal(np.array([d.embedding for d in packed.data], np.float32), wanted)
    reported = client.embeddings.create(model="smollm2", input=TEXTS, encoding_format="float")
    assert np.array_equal(np.array([d.embedding for d in reported.data], np.float32), wanted)
    assert reported.usage.prompt_tokens == sum(len(engine.encode(text)) for text in TEXTS)
    last = client.embeddings.create(
        model="smollm2", input=engine.encode(TEXTS[0]), extra_body={"pooling": "last"}
    )
    wanted = engine.embed(TEXTS[:1], "last")[0]
    assert np.array_equal(np.array(last.data[0].embedding, np.float32), wanted)
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="smollm2", input="a", dimensions=8)


def test_ollama_s_vectors_are_the_engine_s(server: Any, engine: Engine) -> None:
    answer = ollama.Client(host=server.url).embed("smollm2", TEXTS)
    assert np.array_equal(np.array(answer.embeddings, np.float32), engine.embed(TEXTS))


def test_long_texts_are_cut_where_clients_ask_for_it(
    smollm2_bundle: Path, make_server: Callable[..., Any]
) -> None:
    """Ollama's are, unless it is told not to; OpenAI's are refused, unless fields of others ask."""
    options = EngineOptions(context=24)
    server = make_server(load=lambda bundle: load(bundle, options))
    client, text = ollama.Client(host=server.url), "word " * 40
    with load(smollm2_bundle, options) as engine:
        wanted = engine.embed([text], most_tokens=0)[0]
        short = engine.embed([text], most_tokens=5)[0]
    assert np.array_equal(np.array(client.embed("smollm2", text).embeddings[0], np.float32), wanted)
    for ask in (client.embed, client.embeddings):
        assert ask("smollm2", text)
    with pytest.raises(ollama.ResponseError) as caught:
        client.embed("smollm2", text, truncate=False)
    assert caught.value.status_code == 400
    for fields, vector in (
        ({"truncate": True}, wanted),
        ({"truncate": "END"}, wanted),
        ({"truncate_prompt_tokens": -1}, wanted),
        ({"truncate_prompt_tokens": 5}, short),
    ):
        status, answer = server.ask("POST", "/v1/embeddings", {"input": text, **fields})
        assert status == 200
        assert np.array_equal(np.array(answer["data"][0]["embedding"], np.float32), vector)
    for fields in ({}, {"truncate": "NONE"}, {"truncate": False}):
        status, answer = server.ask("POST", "/v1/embeddings", {"input": text, **fields})
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"


def test_a_batch_of_the_stated_size_is_taken_and_a_larger_one_refused(
    small_bundle: Path, make_server: Callable[..., Any]
) -> None:
    server = make_server([f"small={small_bundle}"])
    status, answer = server.ask("POST", "/v1/embeddings", {"input": [[1]] * 2048})
    assert (status, len(answer["data"])) == (200, 2048)
    status, answer = server.ask("POST", "/v1/embeddings", {"input": [[1]] * 2049})
    assert status == 400
    assert "2048" in answer["error"]["message"]


def test_ollama_s_older_request_gets_one_vector(server: Any, engine: Engine) -> None:
    answer = ollama.Client(host=server.url).embeddings("smollm2", TEXTS[0])
    assert np.array_equal(np.array(answer.embedding, np.float32), engine.embed(TEXTS[:1])[0])


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"dimensions": 64}, "dimensions"),
        ({"options": {"tfs_z": 0.5}}, "options.tfs_z"),
        ({"options": {"lora": [1]}}, "options.lora"),
    ],
)
@pytest.mark.parametrize(("path", "texts"), [("embed", "input"), ("embeddings", "prompt")])
def test_what_ollama_s_requests_cannot_have_is_refused_by_name(
    server: Any, path: str, texts: str, fields: dict[str, Any], name: str
) -> None:
    body = {"model": "smollm2", texts: "a", **fields}
    status, answer = server.ask("POST", f"/api/{path}", body)
    assert status == 400
    assert answer["error"].startswith(f"{name}: ")


def test_without_a_text_ollama_s_requests_load_the_model(server: Any) -> None:
    client = ollama.Client(host=server.url)
    assert client.embed("smollm2", "").embeddings == client.embed("smollm2", []).embeddings == []
    assert client.embeddings("smollm2", "").embedding == []


def test_what_changes_nothing_about_vectors_is_taken(
    server: Any, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    client, wanted = ollama.Client(host=server.url), engine.embed(TEXTS[:1])[0]
    options = {"num_ctx": 512, "temperature": 0.5, "seed": 3, "num_thread": 1}
    new = client.embed("smollm2", TEXTS[0], options=options, truncate=False, dimensions=0)
    old = client.embeddings("smollm2", TEXTS[0], options=options, keep_alive="5m")
    openais = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    same = {"normalize": True, "embd_normalize": 2, "truncate": "NONE", "input_type": "query"}
    made = openais.embeddings.create(
        model="smollm2", input=TEXTS[0], encoding_format="float", user="me", extra_body=same
    )
    for vector in (new.embeddings[0], old.embedding, made.data[0].embedding):
        assert np.array_equal(np.array(vector, np.float32), wanted)
    assert not caplog.records


@pytest.mark.parametrize(
    "fields",
    [
        {"normalize": False},
        {"embd_normalize": -1},
        {"embd_normalize": 0},
        {"add_special_tokens": False},
        {"truncate_prompt_tokens": -2},
        {"truncate": "START"},
        {"dimensions": 0},
        {"prompt_name": "query"},
        {"input_type": "poem"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"embed_dtype": "float16"},
        {"endianness": "big"},
    ],
)
def test_vectors_of_another_kind_are_refused_by_name(server: Any, fields: dict[str, Any]) -> None:
    status, answer = server.ask("POST", "/v1/embeddings", {"input": "a", **fields})
    assert status == 400
    assert answer["error"]["message"].startswith(f"{next(iter(fields))}: ")
