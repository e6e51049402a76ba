"""Requests of the shapes that editors' plug-ins and a chat page send, and what they read.

Open WebUI's fields are those of its source (0.12.4: `routers/openai.py`, `ollama.py`). Those of
Continue (`core/llm/llms/LlamaCpp.ts`, `Ollama.ts`) and Zed (`crates/llama_cpp`, `crates/ollama`,
edit predictions in `fim.rs`) are the known ones; their programs were not run.
"""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

pytestmark = pytest.mark.e2e

TOOL = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Reads a file of the project.",
        "parameters": {
            "type": "object",
            "properties": {"path": {"type": "string", "maxLength": 12}},
            "required": ["path"],
        },
    },
}


def events(raw: bytes) -> list[dict[str, Any]]:
    """Returns the documents of server-sent events, whose end is marked."""
    lines = [line for line in raw.decode().split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    return [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]


def test_continue_with_llama_cpp(server: Any, engine: Engine) -> None:
    prompt = "One, two, three,"
    body = {
        "n_predict": 8,
        "frequency_penalty": None,
        "presence_penalty": None,
        "min_p": None,
        "mirostat": None,
        "stop": ["\n\n\n"],
        "top_k": 1,
        "top_p": 1,
        "temperature": 0,
        "stream": True,
        "prompt": prompt,
    }
    headers = {"Content-Type": "application/json", "Authorization": "Bearer "}
    status, _, raw = server.ask_raw("POST", "/completion", body, headers)
    assert status == 200
    text = "".join(event["content"] for event in events(raw))
    assert text == engine.generate(prompt, GenerationConfig(max_new_tokens=8)).text


def test_continue_with_ollama(server: Any, engine: Engine) -> None:
    _, shown = server.ask("POST", "/api/show", {"name": "smollm2"})
    assert ".Suffix" not in shown["template"]  # SmolLM2 cannot fill in: Continue then asks raw
    assert "parameters" in shown
    options = {
        "temperature": 0,
        "top_p": None,
        "top_k": None,
        "num_predict": 6,
        "stop": None,
        "num_ctx": 4096,
        "mirostat": None,
        "num_thread": None,
        "use_mmap": None,
        "min_p": None,
        "num_gpu": None,
    }
    prompt = "One, two, three,"
    body = {
        "model": "smollm2",
        "raw": True,
        "options": options,
        "keep_alive": 1800,
        "stream": True,
        "prompt": prompt,
    }
    status, headers, raw = server.ask_raw("POST", "/api/generate", body)
    assert (status, headers["content-type"]) == (200, "application/x-ndjson")
    lines = [json.loads(line) for line in raw.splitlines()]
    expected = engine.generate(prompt, GenerationConfig(max_new_tokens=6)).text
    assert "".join(line["response"] for line in lines) == expected
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    chat = {key: body[key] for key in ("model", "options", "keep_alive", "stream")}
    chat["messages"] = [{"role": "user", "content": "Hi"}]
    _, _, raw = server.ask_raw("POST", "/api/chat", {**chat, "think": False})
    lines = [json.loads(line) for line in raw.splitlines()]
    assert all(line["message"]["role"] == "assistant" for line in lines)
    assert "".join(line["message"]["content"] for line in lines)


def test_zed_finds_llama_server_s_models(server: Any) -> None:
    _, models = server.ask("GET", "/v1/models")
    (model,) = models["data"]
    assert model["id"] == "smollm2"
    assert model["meta"]["n_ctx"] == 8192
    assert model["status"]["value"] in ("loaded", "unloaded")
    _, props = server.ask("GET", "/props?model=smollm2&autoload=false")
    assert isinstance(props["chat_template_caps"]["supports_tool_calls"], bool)


def test_zed_chats_with_tools(server: Any) -> None:
    body = {
        "model": "smollm2",
        "messages": [
            {"role": "system", "content": "You help in an editor."},
            {"role": "user", "content": [{"type": "text", "text": "Read a.txt."}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "read_file", "arguments": '{"path": "a.txt"}'},
                    }
                ],
            },
            {"role": "tool", "content": "Hello", "tool_call_id": "call_1"},
            {"role": "user", "content": "Now read b.txt."},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 40,
        "temperature": 0,
        "tools": [TOOL],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    status, _, raw = server.ask_raw("POST", "/v1/chat/completions", body)
    assert status == 200
    found = events(raw)
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] > 0
    calls = [
        call
        for event in found[:-1]
        for choice in event["choices"]
        for call in choice["delta"].get("tool_calls", [])
    ]
    assert {call["index"] for call in calls} == {0}
    assert calls[0]["id"]
    assert calls[0]["function"]["name"] == "read_file"
    arguments = "".join(call["function"].get("arguments", "") for call in calls)
    assert isinstance(json.loads(arguments)["path"], str)
    reasons = [c["finish_reason"] for event in found for c in event["choices"]]
    assert reasons[-1] == "tool_calls"


def test_zed_predicts_edits(server: Any, engine: Engine) -> None:
    prompt = "<|fim_prefix|>def add(a, b):\n    return <|fim_suffix|>\n<|fim_middle|>"
    stops = ["<|endoftext|>", "<|file_separator|>", "<|fim_pad|>", "<|fim_prefix|>"]
    body = {
        "model": "smollm2",
        "prompt": prompt,
        "max_tokens": 8,
        "temperature": 0.0,
        "stop": stops,
        "stream": False,
    }
    status, found = server.ask("POST", "/v1/completions", body)
    expected = engine.generate(prompt, GenerationConfig(max_new_tokens=8, stop=stops)).text
    assert (status, found["choices"][0]["text"]) == (200, expected)
    ollama = {
        "model": "smollm2",
        "prompt": prompt,
        "raw": True,
        "stream": False,
        "options": {"num_predict": 8, "temperature": 0.0, "stop": stops},
    }
    status, found = server.ask("POST", "/api/generate", ollama)
    assert (status, found["response"]) == (200, expected)


def test_zed_chats_with_ollama(server: Any) -> None:
    _, tags = server.ask("GET", "/api/tags")
    assert [model["name"] for model in tags["models"]] == ["smollm2"]
    _, shown = server.ask("POST", "/api/show", {"model": "smollm2"})
    name = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{name}.context_length"] == 8192
    assert "tools" in shown["capabilities"]
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Name a river.", "images": None}],
        "stream": True,
        "keep_alive": -1,
        "options": {
            "num_ctx": 8192,
            "num_predict": 8,
            "stop": [],
            "temperature": 0.0,
            "top_p": None,
        },
        "think": None,
        "tools": [TOOL],
    }
    status, _, raw = server.ask_raw("POST", "/api/chat", body)
    assert status == 200
    lines = [json.loads(line) for line in raw.splitlines()]
    assert lines[-1]["done"] is True
    assert lines[-1]["prompt_eval_count"] > 0
    assert lines[-1]["eval_count"] > 0
    assert all("content" in line["message"] for line in lines)


def test_open_webui_chats_and_asks_for_a_title(server: Any, engine: Engine) -> None:
    headers = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "me"}
    status, found = server.ask("GET", "/v1/models", headers=headers)
    assert (status, [model["id"] for model in found["data"]]) == (200, ["smollm2"])
    messages = [{"role": "user", "content": "Name a river."}]
    body = {
        "stream": True,
        "model": "smollm2",
        "messages": messages,
        "stream_options": {"include_usage": True},
        "max_tokens": 8,
        "temperature": 0,
    }
    _, _, raw = server.ask_raw("POST", "/v1/chat/completions", body, headers)
    found = events(raw)
    text = "".join(c["delta"].get("content") or "" for e in found for c in e["choices"])
    assert text == engine.generate(messages, GenerationConfig(max_new_tokens=8)).text
    assert found[-1]["usage"]["completion_tokens"] == 8
    title = [{"role": "user", "content": "### Task:\nWrite a title as JSON.\n"}]
    body = {"model": "smollm2", "messages": title, "stream": False, "max_tokens": 8}
    status, answer = server.ask("POST", "/v1/chat/completions", body, headers)
    assert status == 200
    assert answer["choices"][0]["message"]["role"] == "assistant"


def test_open_webui_unloads_a_model_of_ollama(make_server: Any) -> None:
    own = make_server()
    chat = {"model": "smollm2", "messages": [{"role": "user", "content": "Hi"}], "stream": False}
    assert own.ask("POST", "/api/chat", {**chat, "options": {"num_predict": 2}})[0] == 200
    assert [one["name"] for one in own.ask("GET", "/api/ps")[1]["models"]] == ["smollm2"]
    body = {"model": "smollm2", "keep_alive": 0, "prompt": ""}
    assert own.ask_raw("POST", "/api/generate", body)[0] == 200
    for _ in range(500):
        if not own.ask("GET", "/api/ps")[1]["models"]:
            return
        time.sleep(0.02)
    raise AssertionError("the model is still loaded")
