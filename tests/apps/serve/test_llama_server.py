"""llama-server's interface, asked as llama.vim, llama.vscode and Zed do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load

pytestmark = pytest.mark.e2e


def test_it_tells_of_itself(server: Any) -> None:
    assert server.ask("GET", "/health") == (200, {"status": "ok"})
    _, props = server.ask("GET", "/props?model=smollm2&autoload=false")
    assert props["default_generation_settings"]["n_ctx"] == 8192
    assert "<|im_start|>" in props["chat_template"]
    _, slots = server.ask("GET", "/slots")
    assert len(slots) == props["total_slots"]
    _, models = server.ask("GET", "/v1/models")
    assert models["data"][0]["status"]["value"] in ("loaded", "unloaded")


def test_tokens_there_and_back(server: Any, engine: Engine) -> None:
    text = "Grüße <|im_end|> 🙂"
    _, found = server.ask("POST", "/tokenize", {"content": text})
    assert found["tokens"] == engine.tokenizer.encode(text)
    assert server.ask("POST", "/detokenize", found) == (200, {"content": text})
    status, found = server.ask("POST", "/detokenize", {"tokens": [10**9]})
    assert (status, found["error"]["type"]) == (400, "invalid_request_error")


def test_tokens_with_their_pieces(server: Any, engine: Engine) -> None:
    body = {"content": "Hello there", "with_pieces": True}
    tokens = server.ask("POST", "/tokenize", body)[1]["tokens"]
    assert [token["id"] for token in tokens] == engine.tokenizer.encode("Hello there")
    assert "".join(token["piece"] for token in tokens) == "Hello there"


def test_a_template_is_applied(server: Any) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    _, found = server.ask("POST", "/apply-template", {"messages": messages})
    assert found["prompt"].endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_a_completion_is_the_engine_s(server: Any, engine: Engine) -> None:
    body = {"prompt": "One, two,", "n_predict": 8, "temperature": 0, "cache_prompt": True}
    status, found = server.ask("POST", "/completion", body)
    text = engine.generate("One, two,", GenerationConfig(max_new_tokens=8)).text
    assert (status, found["content"], found["stop"]) == (200, text, True)
    assert found["timings"]["predicted_n"] == 8
    _, headers, raw = server.ask_raw("POST", "/completion", {**body, "stream": True})
    assert headers["content-type"] == "text/event-stream"
    assert raw.count(b"data: ") > 2


def test_fields_are_picked_by_name(server: Any) -> None:
    fields = ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "nothing/here"]
    body = {"prompt": "One, two,", "n_predict": 2, "response_fields": fields}
    _, found = server.ask("POST", "/completion", body)
    assert list(found) == fields[:4]
    assert server.ask("POST", "/completion", {**body, "response_fields": [""]})[1] == {}


def test_several_completions_are_a_list(server: Any) -> None:
    body = {"prompt": "One, two,", "n_predict": 2, "n_cmpl": 2}
    _, found = server.ask("POST", "/completion", body)
    assert [one["index"] for one in found] == [0, 1]


def test_metrics_are_what_prometheus_reads(server: Any) -> None:
    parser = pytest.importorskip("prometheus_client.parser")
    server.ask("POST", "/completion", {"prompt": "One, two,", "n_predict": 2})
    _, headers, text = server.ask_raw("GET", "/metrics")
    assert headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {f.name: f for f in parser.text_string_to_metric_families(text.decode())}
    assert families["edgedec:tokens_predicted"].samples[0].value >= 2
    assert families["edgedec:requests_processing"].type == "gauge"


@pytest.fixture(scope="module")
def coder(find_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = find_model("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf")
    bundle = tmp_path_factory.mktemp("bundles") / "coder.edgedec"
    export(ExportConfig(source=str(source), destination=bundle))
    return bundle


@pytest.mark.pair
def test_what_is_missing_is_filled_in(make_server: Any, coder: Path) -> None:
    server = make_server([f"qwen2.5-coder:0.5b={coder}"])
    before, after = "def add(a, b):\n    return a", "\n\nprint(add(1, 2))\n"
    body = {
        "input_prefix": before,
        "input_suffix": after,
        "input_extra": [{"filename": "b.py", "text": "def sub(a, b):\n    return a - b\n"}],
        "prompt": "",
        "n_predict": 8,
        "temperature": 0,
        "samplers": ["top_k", "top_p", "infill"],
        "response_fields": ["content", "timings/prompt_n", "tokens_cached", "truncated"],
    }
    _, _, raw = server.ask_raw("POST", "/infill", body)
    assert raw.startswith(b"{")
    infill = (
        f"<|fim_prefix|>{before}<|fim_suffix|>{after}<|fim_middle|>"  # as its model card has it
    )
    with load(coder) as engine:
        config = GenerationConfig(max_new_tokens=8)
        other = "<|file_sep|>b.py\ndef sub(a, b):\n    return a - b\n\n<|file_sep|>"
        written, with_other = (
            engine.generate(engine.tokenizer.encode_rendered(text, {}), config).text
            for text in (infill, other + infill)
        )
    assert json.loads(raw)["content"] == with_other
    asked = {"model": "", "prompt": before, "suffix": after, "max_tokens": 8, "temperature": 0}
    _, found = server.ask("POST", "/v1/completions", asked)
    assert found["choices"][0]["text"] == written
    _, found = server.ask("POST", "/v1/completions", {**asked, "stop": "\n"})  # one line of it
    assert found["choices"][0]["text"] == " + b"
    _, shown = server.ask("POST", "/api/show", {"model": "qwen2.5-coder:0.5b"})
    assert ".Suffix" in shown["template"]
    assert "insert" in shown["capabilities"]
