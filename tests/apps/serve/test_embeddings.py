"""Vectors, asked for by OpenAI's and Ollama's own clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

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
    with pytest.raises(ollama.ResponseError) as caught:
        ollama.Client(host=server.url).embed("smollm2", "word " * 9000)
    assert caught.value.status_code == 400


def test_a_batch_of_the_stated_size_is_taken_and_a_larger_one_refused(server: Any) -> None:
    status, answer = server.ask("POST", "/v1/embeddings", {"input": [[1]] * 2048})
    assert (status, len(answer["data"])) == (200, 2048)
    status, answer = server.ask("POST", "/v1/embeddings", {"input": [[1]] * 2049})
    assert status == 400
    assert "2048" in answer["error"]["message"]


def test_ollama_s_older_request_gets_one_vector(server: Any, engine: Engine) -> None:
    answer = ollama.Client(host=server.url).embeddings("smollm2", TEXTS[0])
    assert np.array_equal(np.array(answer.embedding, np.float32), engine.embed(TEXTS[:1])[0])
