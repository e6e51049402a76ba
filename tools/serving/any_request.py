"""Asks a server at random, and checks every answer against its description and clients' types.

    pip install schemathesis openai anthropic ollama
    python tools/serving/any_request.py smollm2.edgedec --seconds 600

Half of the time schemathesis makes requests of the server's OpenAPI document, valid and invalid
ones. In the other half, requests that make sense are mixed of the fields that clients send. Each
answer, and each event of a stream, must be of the type that the client's package states, strictly.
No request may have a status of 500 or more.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anthropic.types
import ollama
import openai.types
from openai.types import chat, responses
from pydantic import TypeAdapter, ValidationError

WAIT_S = 60
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance", "negative_data_rejection",
)  # fmt: skip
"""Not among them: that every body of the right form is accepted, for some ask for nothing."""

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
LOOK = {"name": "look", "description": "Looks.", "parameters": SCHEMA}
TEXTS = ("Hi", "What is 2 + 2?", "日本 🙂\u2028", 'Say "<think>" and </tool_call>', "x" * 500)
SAMPLING: dict[str, Sequence[Any]] = {
    "temperature": (0, 0.7, 2.0), "top_p": (0.5, 1), "seed": (-1, 7), "min_p": (0.1,),
    "reasoning_effort": ("none", "high"), "samplers": (["top_k", "top_p", "temperature"],),
    "thinking_budget": (0, 2), "frequency_penalty": (0.5,), "logit_bias": ({"5": -100}, {}),
}  # fmt: skip
LIMITS = (1, 3, 8, 24)


def call(name: str, arguments: Any) -> dict[str, Any]:
    """Returns a call of an earlier turn."""
    function = {"name": name, "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def chat_body(rng: random.Random) -> dict[str, Any]:
    """Returns a body of OpenAI's chat."""
    text = rng.choice(TEXTS)
    part = [{"type": "text", "text": text}]
    turns: list[dict[str, Any]] = [{"role": "user", "content": rng.choice((text, part))}]
    if rng.random() < 0.3:
        turns.append({"role": "assistant", "content": None, "tool_calls": [call("look", "{")]})
        turns.append({"role": "tool", "tool_call_id": "call_1", "content": text})
    tools = [{"type": "function", "function": LOOK}]
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    fields = {
        "n": (2,), "logprobs": (True,), "stop": (["a", "e"], "\n"), "tools": (tools,),
        "tool_choice": ("auto", "none"), "response_format": (form, {"type": "json_object"}),
        "max_tokens": LIMITS, "stream_options": ({"include_usage": True},), **SAMPLING,
    }  # fmt: skip
    return {"messages": turns, "max_tokens": 8, **some_of(rng, fields)}


def completion_body(rng: random.Random) -> dict[str, Any]:
    """Returns a body of OpenAI's completions."""
    prompt = rng.choice((*TEXTS, ["a", "b"], [5, 6, 7]))
    fields = {"n": (2,), "logprobs": (0, 3), "echo": (True,), "max_tokens": LIMITS, **SAMPLING}
    return {"prompt": prompt, "max_tokens": 8, **some_of(rng, fields)}


def response_body(rng: random.Random) -> dict[str, Any]:
    """Returns a body of OpenAI's responses."""
    text = rng.choice(TEXTS)
    made = {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{"}
    result = {"type": "function_call_output", "call_id": "call_1", "output": text}
    space = {"type": "namespace", "name": "eyes", "description": "-"}
    tool = {"type": "function", **LOOK}
    fields = {
        "input": (text, [{"role": "user", "content": text}, made, result]),
        "instructions": ("Be brief.",), "tools": ([tool], [{**space, "tools": [tool]}]),
        "tool_choice": ("auto", "none"), "include": (["message.output_text.logprobs"],),
        "text": ({"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},),
        "max_output_tokens": LIMITS, "reasoning": ({"effort": "low"},), **SAMPLING,
    }  # fmt: skip
    return {"input": text, "max_output_tokens": 8, **some_of(rng, fields)}


def message_body(rng: random.Random) -> dict[str, Any]:
    """Returns a body of Anthropic's messages."""
    text = rng.choice(TEXTS)
    used = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": text}
    turns = [{"role": "user", "content": text}]
    if rng.random() < 0.3:
        turns += [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    fields = {
        "system": (text, [{"type": "text", "text": text}]), "max_tokens": LIMITS,
        "tools": ([{"name": "look", "input_schema": SCHEMA}],), "temperature": (0, 1.0),
        "tool_choice": ({"type": "auto"}, {"type": "none"}), "stop_sequences": (["a"],),
        "thinking": ({"type": "enabled", "budget_tokens": 2}, {"type": "disabled"}),
        "output_config": ({"format": {"type": "json_schema", "schema": SCHEMA}},), "top_k": (3,),
    }  # fmt: skip
    return {"messages": turns, "max_tokens": 8, **some_of(rng, fields)}


def ollama_body(rng: random.Random) -> dict[str, Any]:
    """Returns a body of Ollama's chat."""
    made = {"function": {"name": "look", "arguments": {"n": 1}}}
    turns = [{"role": "user", "content": rng.choice(TEXTS)}]
    if rng.random() < 0.3:
        turns += [{"role": "assistant", "tool_calls": [made]}, {"role": "tool", "content": "2"}]
    options = some_of(rng, {"temperature": (0, 0.7), "top_k": (3,), "stop": (["a"],)})
    fields = {
        "tools": ([{"type": "function", "function": LOOK}],), "format": ("json", SCHEMA, ""),
        "think": (True, False, "low"), "logprobs": (True,), "keep_alive": ("5m", -1),
    }  # fmt: skip
    options["num_predict"] = rng.choice(LIMITS)
    return {"messages": turns, "options": options, **some_of(rng, fields)}


def generate_body(rng: random.Random) -> dict[str, Any]:
    """Returns a body of Ollama's texts."""
    body = ollama_body(rng)
    fields = {"system": ("Be brief.",), "raw": (True,), "prompt": ("",)}
    kept = {name: body[name] for name in body if name not in ("messages", "tools")}
    return {**kept, "prompt": rng.choice(TEXTS), **some_of(rng, fields)}


def some_of(rng: random.Random, fields: dict[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns some fields, with one of their values each."""
    return {name: rng.choice(values) for name, values in fields.items() if rng.random() < 0.25}


Kinds = tuple[Callable[[random.Random], dict[str, Any]], Any, Any]
INTERFACES: dict[str, Kinds] = {
    "/v1/chat/completions": (chat_body, chat.ChatCompletion, chat.ChatCompletionChunk),
    "/v1/completions": (completion_body, openai.types.Completion, openai.types.Completion),
    "/v1/responses": (response_body, responses.Response, responses.ResponseStreamEvent),
    "/v1/messages": (
        message_body, anthropic.types.Message, anthropic.types.RawMessageStreamEvent,
    ),
    "/api/chat": (ollama_body, ollama.ChatResponse, ollama.ChatResponse),
    "/api/generate": (generate_body, ollama.GenerateResponse, ollama.GenerateResponse),
}  # fmt: skip
"""By address: what makes bodies, and the types of answers and of events."""


def faults(port: int, rng: random.Random) -> Iterator[str]:
    """Asks once, and yields what is wrong with the answer."""
    path = rng.choice(list(INTERFACES))
    make, answer, event = INTERFACES[path]
    is_streamed = rng.random() < 0.5
    body = {"model": "m", **make(rng), "stream": is_streamed}
    if not is_streamed:
        body.pop("stream_options", None)
    status, raw = ask(port, path, body)
    if status != 200:
        if status >= 500 or not json.loads(raw).get("error"):
            yield f"{path}: status {status}: {raw[:300]!r}\n  {json.dumps(body)}"
        return
    kind = TypeAdapter(event if is_streamed else answer)
    for piece in pieces(raw) if is_streamed else [raw]:
        try:
            kind.validate_json(without_nulls(piece) if path == "/v1/completions" else piece)
        except ValidationError as error:
            yield f"{path}: {error}\n  {piece[:300]!r}\n  {json.dumps(body)}"


def without_nulls(piece: bytes) -> bytes:
    """Returns an older completion without the nulls that OpenAI sends and its package forgets."""
    document = json.loads(piece)
    for choice in document["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
        for name in ("token_logprobs", "top_logprobs"):
            if choice["logprobs"] and choice["logprobs"][name]:
                values = choice["logprobs"][name]
                choice["logprobs"][name] = [value for value in values if value is not None]
    return json.dumps(document).encode()


def pieces(raw: bytes) -> list[bytes]:
    """Returns the documents of a stream: of server-sent events, or one a line."""
    lines = [line for line in raw.split(b"\n") if line.strip()]
    data = [line[6:] for line in lines if line.startswith(b"data: ") and line[6:] != b"[DONE]"]
    if data:  # the package does not type signs of life
        return [piece for piece in data if piece != b'{"type":"ping"}']
    return [line for line in lines if not line.startswith(b":")]


def ask(port: int, path: str, body: dict[str, Any]) -> tuple[int, bytes]:
    """Returns status and body of an answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("POST", path, json.dumps(body))
    answer = connection.getresponse()
    reply = answer.status, answer.read()
    connection.close()
    return reply


@contextmanager
def serving(bundle: Path, *more: str) -> Iterator[int]:
    """Runs a server of ``bundle``, as ``m``, inside the block; its port. more: models, options."""
    command = [sys.executable, "-c", "from edgedec.apps.cli import main; main()", "serve"]
    command += [f"m={bundle}", *more, "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert server.stdout is not None
        line = next(line for line in server.stdout if line.startswith("serving"))
        yield int(line.rsplit(":", 1)[1])
    finally:
        server.terminate()
        server.wait(WAIT_S)


def main() -> int:
    """Returns 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, n_asked, statuses = random.Random(options.seed), 0, set[str]()
    with serving(options.bundle, "--max-new-tokens", "24", "--threads", "1") as port:
        end_s = time.monotonic() + options.seconds / 2
        while time.monotonic() < end_s:
            statuses.update(faults(port, rng))
            n_asked += 1
        print("\n".join(sorted(statuses)))
        print(f"{n_asked} requests as clients make them; faults: {len(statuses)}", flush=True)
        command = ["schemathesis", "run", f"http://127.0.0.1:{port}/openapi.json", "--no-color"]
        command += ["--max-time", str(int(options.seconds / 2)), "--request-timeout", str(WAIT_S)]
        command += ["--checks", ",".join(CHECKS), "--suppress-health-check", "all"]
        command[0] = str(Path(sys.executable).with_name(command[0]))
        described = subprocess.run(command, check=False)
    return 1 if statuses or described.returncode else 0


if __name__ == "__main__":
    raise SystemExit(main())
