"""What the operator sees of requests: a line for each, and metrics that Prometheus reads."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgedec.apps.serve.log_form import LogForm

openai = pytest.importorskip("openai")
ollama = pytest.importorskip("ollama")
pytestmark = pytest.mark.e2e

KEYS = ("first-secret", "second-secret")
ASK = [{"role": "user", "content": "Tell me of the SECRETWORD."}]


def samples(server: Any, **headers: str) -> dict[tuple[str, str, str], float]:
    """Returns all samples: from name, model and status to value; buckets left out."""
    _, _, text = server.ask_raw("GET", "/metrics", headers=headers)
    families = text_string_to_metric_families(text.decode())
    return {
        (
            one.name.removeprefix("edgedec:"),
            one.labels.get("model", ""),
            one.labels.get("status", ""),
        ): one.value
        for family in families
        for one in family.samples
        if "le" not in one.labels
    }


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def wait_for_lines(
    capsys: pytest.CaptureFixture[str], until: Any, n: int
) -> tuple[list[dict[str, Any]], str]:
    """Returns the log's lines, once there are ``n``, and their text."""
    text = ""

    def have_come() -> bool:
        nonlocal text
        text += capsys.readouterr().err
        return text.count("\n") >= n

    until(have_come)
    return lines_of(text), text


def test_a_line_says_who_asked_which_model_for_how_much(
    make_server: Any, capsys: pytest.CaptureFixture[str], until: Any
) -> None:
    server = make_server(api_keys=KEYS, log=LogForm.JSON)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEYS[1], max_retries=0)
    whole = client.chat.completions.create(model="smollm2", messages=ASK, max_tokens=5)
    (line,), text = wait_for_lines(capsys, until, 1)
    assert (line["method"], line["path"]) == ("POST", "/v1/chat/completions")
    assert (line["status"], line["key"], line["model"]) == (200, 2, "smollm2")
    assert line["prompt_tokens"] == whole.usage.prompt_tokens
    assert line["new_tokens"] == whole.usage.completion_tokens
    assert line["cached_tokens"] == whole.usage.prompt_tokens_details.cached_tokens
    assert 0 < line["first_s"] <= line["total_s"]
    pieces = list(
        client.chat.completions.create(model="smollm2", messages=ASK, max_tokens=5, stream=True)
    )
    assert pieces
    client.embeddings.create(model="smollm2", input=["One", "Two"])
    found, more = wait_for_lines(capsys, until, 2)
    assert [(one["status"], one["new_tokens"]) for one in found] == [(200, 5), (200, 0)]
    assert (found[1]["first_s"], found[1]["prompt_tokens"]) == (None, 2)
    assert not any(word in text + more for word in ("SECRETWORD", *KEYS))


def test_what_is_refused_has_a_line_and_its_model_is_no_label(
    make_server: Any, capsys: pytest.CaptureFixture[str], until: Any
) -> None:
    server = make_server(api_keys=KEYS, log=LogForm.JSON)
    bearer = {"Authorization": f"Bearer {KEYS[0]}"}
    body = {"model": "stranger-model", "messages": ASK}
    server.ask("POST", "/v1/chat/completions", body)
    server.ask("POST", "/v1/chat/completions", body, bearer)
    server.ask("POST", "/v1/chat/completions", {**body, "model": "", "temperature": -1}, bearer)
    server.ask("GET", "/v1/none%0Astatus=200", headers=bearer)
    found, text = wait_for_lines(capsys, until, 4)
    told = [(one["status"], one["key"], one["model"]) for one in found]
    assert told == [(401, None, None), (404, 1, None), (400, 1, "smollm2"), (404, 1, None)]
    assert found[3]["path"] == "/v1/none%0Astatus%3D200"
    counted = samples(server, **bearer)
    assert {key[1:]: n for key, n in counted.items() if key[0] == "requests_total"} == {
        ("", "401"): 1,
        ("", "404"): 2,
        ("smollm2", "400"): 1,
    }
    assert "stranger" not in text + repr(counted)


def test_one_that_goes_away_is_499(
    make_server: Any, capsys: pytest.CaptureFixture[str], until: Any
) -> None:
    server = make_server(log=LogForm.JSON)
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="smollm2", messages=ASK, max_tokens=8000, stream=True,
        extra_body={"logit_bias": {"2": -100, "0": -100}},
    )  # fmt: skip
    for _ in range(4):
        next(stream)
    stream.close()
    (line,), _ = wait_for_lines(capsys, until, 1)
    assert (line["status"], line["model"]) == (499, "smollm2")
    assert 0 < line["first_s"] <= line["total_s"]


def test_an_error_inside_a_stream_is_the_status(
    make_server: Any, capsys: pytest.CaptureFixture[str], until: Any
) -> None:
    server = make_server(log=LogForm.JSON, request_s=2.0)
    server.ask("POST", "/completion", {"prompt": "A", "n_predict": 1})  # the model is loaded then
    body = {"messages": ASK, "stream": True, "logit_bias": {"2": -100, "0": -100}}
    status, _, _ = server.ask_raw("POST", "/v1/chat/completions", body)
    (_, line), _ = wait_for_lines(capsys, until, 2)
    assert (status, line["status"]) == (200, 504)


def test_metrics_are_those_of_the_answers(make_server: Any) -> None:
    server = make_server()
    assert samples(server)[("tokens_predicted_total", "smollm2", "")] == 0
    client = ollama.Client(host=server.url)
    wanted = {"temperature": 0, "num_predict": 4}
    answers = [client.chat("smollm2", ASK, options=wanted) for _ in range(2)]
    found = samples(server)
    model, end = ("smollm2", ""), ("smollm2", "200")
    assert found[("tokens_predicted_total", *model)] == sum(one.eval_count for one in answers)
    n_prompt = sum(one.prompt_eval_count for one in answers)
    n_computed = found[("prompt_tokens_total", *model)]
    assert n_computed + found[("prompt_cached_tokens_total", *model)] == n_prompt
    assert found[("requests_total", *end)] == 2
    assert found[("request_seconds_count", *end)] == 2
    assert found[("first_token_seconds_count", *end)] == 2
    assert 0 < found[("first_token_seconds_sum", *end)] <= found[("request_seconds_sum", *end)]


def test_buckets_add_up(make_server: Any) -> None:
    server = make_server()
    server.ask("POST", "/completion", {"prompt": "One, two,", "n_predict": 2})
    text = server.ask_raw("GET", "/metrics")[2].decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    family = families["edgedec:request_seconds"]
    assert family.type == "histogram"
    buckets = [one.value for one in family.samples if "le" in one.labels]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 1
    assert len(buckets) > 10


@pytest.mark.parametrize("form", ["requests", "json"])
def test_the_command_writes_lines_on_standard_error(smollm2_bundle: Path, form: str) -> None:
    code = "from edgedec.apps.cli import main; main()"
    model = f"my model={smollm2_bundle}"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", model, "--port", "0", "--log", form],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        port = int(process.stderr.readline().rpartition(":")[2])
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/completion", json.dumps({"prompt": "A", "n_predict": 2}))
        assert connection.getresponse().status == 200
        line = process.stderr.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    if form == "json":
        found = json.loads(line)
        assert (found["model"], found["new_tokens"], found["key"]) == ("my model", 2, None)
    else:
        pairs = dict(word.split("=", 1) for word in line.split())
        assert (pairs["model"], pairs["new_tokens"], pairs["key"]) == ("my%20model", "2", "-")
        assert pairs["path"] == "/completion"
