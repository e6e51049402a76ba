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


def test_a_template_is_applied_to_what_chats_send(server: Any, engine: Engine) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Well,"}]
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}

    def prompt(**fields: Any) -> str:
        body = {"messages": messages, "temperature": 0.5, **fields}
        status, found = server.ask("POST", "/apply-template", body)
        assert status == 200, found
        text: str = found["prompt"]
        return text

    begun = engine.encoder.render(messages[:1]) + "Well,"
    assert prompt() == begun
    assert prompt(continue_final_message=False) == engine.encoder.render(messages)
    assert "look_up" in prompt(tools=[tool])
    assert prompt(tools=[tool], tool_choice="none") == begun
    body = {"content": begun, "parse_special": True}
    tokens = server.ask("POST", "/tokenize", body)[1]["tokens"]
    asked = {"messages": messages, "max_tokens": 1}
    usage = server.ask("POST", "/v1/chat/completions", asked)[1]["usage"]
    assert len(tokens) == usage["prompt_tokens"]
    assert tokens == engine.encoder.encode_marks(begun)
    status, found = server.ask("POST", "/apply-template", {"messages": messages, "audio": {"a": 1}})
    assert (status, "audio" in found["error"]["message"]) == (400, True)


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


def test_what_ended_a_completion_is_named(server: Any) -> None:
    body = {"prompt": "One, two,", "n_predict": 12, "temperature": 0}
    text = server.ask("POST", "/completion", body)[1]["content"]
    stop = text[6:9]
    for fields, kind, word in (
        ({}, "limit", ""),
        ({"stop": ["never said", stop]}, "word", stop),
    ):
        found = server.ask("POST", "/completion", {**body, **fields})[1]
        assert (found["stop_type"], found["stopping_word"]) == (kind, word)
        _, _, raw = server.ask_raw("POST", "/completion", {**body, **fields, "stream": True})
        last = json.loads(raw.strip().rpartition(b"data: ")[2])
        assert (last["stop_type"], last["stopping_word"]) == (kind, word)
    message = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 12, "temperature": 0}
    said = server.ask("POST", "/v1/messages", message)[1]["content"][0]["text"]
    found = server.ask("POST", "/v1/messages", {**message, "stop_sequences": [said[4:7]]})[1]
    assert (found["stop_reason"], found["stop_sequence"]) == ("stop_sequence", said[4:7])


def test_time_and_indentation_end_a_completion(server: Any) -> None:
    body = {"prompt": "One, two,", "n_predict": 64, "temperature": 0}
    text = server.ask("POST", "/completion", body)[1]["content"]
    assert "\n" in text.rstrip("\n")  # otherwise neither limit could show
    first, _, rest = text.partition("\n")
    found = server.ask("POST", "/completion", {**body, "n_indent": 99})[1]
    blanks = rest[: len(rest) - len(rest.lstrip(" \t"))]
    assert found["content"] == f"{first}\n{blanks}"
    assert (found["stop_type"], found["stopping_word"]) == ("limit", "")
    found = server.ask("POST", "/completion", {**body, "t_max_predict_ms": 1e-6})[1]
    assert found["stop_type"] == "limit"
    assert "\n" in found["content"]
    assert len(found["content"]) < len(text)
    assert text.startswith(found["content"])
    _, _, raw = server.ask_raw("POST", "/completion", {**body, "n_indent": 99, "stream": True})
    events = [json.loads(line[6:]) for line in raw.splitlines() if line.startswith(b"data: ")]
    assert "".join(event["content"] for event in events) == f"{first}\n{blanks}"
    assert events[-1]["stop"] is True


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
