"""An embedding model behind the server, asked by OpenAI's and Ollama's own clients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import Engine, load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from tests.tiny_encoder import CONTEXT, write_encoder

openai = pytest.importorskip("openai")
ollama = pytest.importorskip("ollama")
pytestmark = pytest.mark.slow

TEXTS = ["Bread needs flour.", "rockets need fuel", ""]
LONG = "bread " * 40


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    write_encoder(folder / "m")
    export(ExportConfig(str(folder / "m"), folder / "b", quantization="int8"))
    return folder / "b"


@pytest.fixture(scope="module")
def alone(bundle: Path) -> Any:
    """The same model without a server."""
    with load(bundle) as engine:
        yield engine


@pytest.fixture
def encoder(bundle: Path, make_server: Callable[..., Any]) -> Any:
    return make_server([f"mini={bundle}"])


def vectors(answer: Any) -> Any:
    return np.array([one.embedding for one in answer.data], np.float32)


def test_clients_get_the_engine_s_vectors(encoder: Any, alone: Engine) -> None:
    wanted = alone.embed(TEXTS)
    client = openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="mini", input=TEXTS)
    np.testing.assert_array_equal(vectors(answer), wanted)
    assert answer.usage.prompt_tokens == sum(
        len(alone.encode(text)) + 1 if text else 2 for text in TEXTS
    )
    other = ollama.Client(host=encoder.url)
    found = np.array(other.embed("mini", TEXTS).embeddings, np.float32)
    np.testing.assert_array_equal(found, wanted)
    old = other.embeddings("mini", TEXTS[0]).embedding
    np.testing.assert_array_equal(np.array(old, np.float32), wanted[0])
    shown = other.show("mini")
    assert shown.capabilities == ["embedding"]
    assert shown.modelinfo["bert.embedding_length"] == 32


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({"input_type": "query"}, "query"),
        ({"input_type": "search_query"}, "query"),
        ({"input_type": "passage"}, "document"),
        ({"input_type": "search_document"}, "document"),
        ({"input_type": "document"}, "document"),
        ({"prompt_name": "query"}, "query"),
        ({"prompt_name": None, "input_type": None}, None),
    ],
)
def test_prompts(encoder: Any, alone: Engine, fields: dict[str, Any], prompt: str | None) -> None:
    client = openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="mini", input=TEXTS, extra_body=fields)
    wanted = alone.embed(TEXTS, prompt_name=prompt)
    np.testing.assert_array_equal(vectors(answer), wanted)
    assert prompt is None or not np.array_equal(wanted, alone.embed(TEXTS))


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "/v1/embeddings",
            {"input_type": "poem"},
            "has no prompt 'poem', expected one of: document, q",
        ),
        (
            "/v1/embeddings",
            {"input_type": "clustering"},
            "has no prompt 'clustering'",
        ),
        (
            "/v1/embeddings",
            {"prompt_name": "passage"},
            "has no prompt 'passage'",
        ),
        ("/v1/embeddings", {"dimensions": 33}, "dimensions is 33, expected at most the 32"),
        ("/api/embed", {"dimensions": 33}, "dimensions is 33, expected at most the 32"),
        ("/v1/embeddings", {"input": LONG}, f"{CONTEXT}"),
        ("/api/embed", {"input": LONG, "truncate": False}, f"{CONTEXT}"),
        ("/v1/embeddings", {"input": [[]]}, "the prompt is []"),
        ("/v1/embeddings", {"input": [[10**6]]}, "token 1000000"),
        ("/v1/completions", {"prompt": "a"}, "makes vectors of texts and writes none"),
        ("/v1/responses", {"input": "a"}, "makes vectors of texts and writes none"),
        ("/api/generate", {"prompt": "a"}, "makes vectors of texts and writes none"),
        ("/completion", {"prompt": "a"}, "makes vectors of texts and writes none"),
    ],
)
def test_what_the_model_cannot_do(
    encoder: Any, path: str, fields: dict[str, Any], message: str
) -> None:
    status, answer = encoder.ask("POST", path, {"model": "mini", "input": "a", **fields})
    assert status == 400, answer
    error = answer["error"]
    assert message in (error if isinstance(error, str) else error["message"])


def test_fewer_dimensions(encoder: Any, alone: Engine) -> None:
    wanted = alone.embed(TEXTS, n_dimensions=8)
    client = openai.OpenAI(base_url=f"{encoder.url}/v1", api_key="none", max_retries=0)
    answer = client.embeddings.create(model="mini", input=TEXTS, dimensions=8)
    np.testing.assert_array_equal(vectors(answer), wanted)
    found = ollama.Client(host=encoder.url).embed("mini", TEXTS, dimensions=8).embeddings
    np.testing.assert_array_equal(np.array(found, np.float32), wanted)


def test_long_texts_are_cut_where_clients_ask_for_it(encoder: Any, alone: Engine) -> None:
    wanted = alone.embed([LONG], most_tokens=0)
    found = ollama.Client(host=encoder.url).embed("mini", LONG).embeddings
    np.testing.assert_array_equal(np.array(found, np.float32), wanted)
