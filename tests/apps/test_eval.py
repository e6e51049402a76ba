"""`edgedec eval`: tasks, several methods, going on, comparing, Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.evaluation import job as job_module
from edgedec.apps.evaluation.requests import make_requests, request_facts
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig

Cli = Callable[..., Any]
PROGRAM = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]
MATHS = [
    {"question": f"Anna has {n} apples and buys {n} more. How many has she?",
     "answer": f"{n} + {n}\n#### {2 * n}"} for n in (2, 3, 4)
]  # fmt: skip
CODE = {
    "task_id": "Tiny/0",
    "prompt": 'def one():\n    """Returns 1."""\n',
    "test": "def check(candidate):\n    assert candidate() == 1\n",
    "entry_point": "one",
}

pytestmark = pytest.mark.e2e


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def maths(tmp_path: Path) -> Path:
    return write(tmp_path / "maths.jsonl", *MATHS)


def test_methods_take_turns(cli: Cli, small_bundle: Path, maths: Path, tmp_path: Path) -> None:
    samples = tmp_path / "samples.jsonl"
    command = ["eval", small_bundle, "--task", "gsm8k", "--data", maths, "-n", 24]
    command += ["--methods", "plain,lookup", "-o", samples]
    done = cli(*command, "--json")
    assert done.exit_code == 0, done.err
    document = done.json
    assert document["is_complete"]
    assert [row["label"] for row in document["settings"]] == ["plain", "lookup"]
    (compared,) = document["comparisons"]
    assert compared["n_same_answer"] == compared["n_common"] == compared["n_ties"] == 3
    assert compared["time_ratio"]["value"] > 0
    assert len(document["samples"]) == 6
    for sample in document["samples"]:
        assert sample["n_new_tokens"] <= 24
        assert sum(sample["tokens_by_origin"].values()) == sample["n_new_tokens"]
        assert sample["stats"]["n_reused_tokens"] == 0
    order = [json.loads(line) for line in samples.read_text().splitlines()]
    labels = {s["fingerprint"]: s["setting"] for s in document["samples"]}
    turns = [labels[line["fingerprint"]] for line in order if line["kind"] == "sample"]
    assert turns == ["plain", "lookup", "lookup", "plain", "plain", "lookup"]

    samples.write_text("".join(samples.read_text().splitlines(keepends=True)[:-2]) + '{"kind')
    again = cli(*command)
    assert "4 of 6 samples are there already" in again.err
    assert again.err.count("tokens,") == 2
    assert "| lookup " in again.out
    assert [json.loads(line)["name"] for line in samples.read_text().splitlines()[2:]] == [
        line["name"] for line in order[2:]
    ]
    other = cli(*command, "--json", "-n", 20)  # another setting: nothing is taken over
    assert "already" not in other.err
    assert len(samples.read_text().splitlines()) == 16

    alone = cli("eval", "--compare", samples, "--json").json
    assert [row["n_samples"] for row in alone["settings"]] == [3, 3, 3, 3]
    one = ("--method", "plain", "--limit", 2, "--json")
    joined = cli("eval", *command[1:-4], "--compare", samples, *one).json
    assert [row["n_samples"] for row in joined["settings"]] == [2, 2, 2, 2]


def test_several_problems_at_a_time(
    cli: Cli, small_bundle: Path, maths: Path, tmp_path: Path
) -> None:
    command = ["eval", small_bundle, "--task", "gsm8k", "--data", maths, "-n", 24, "--json"]
    command += ["--settings", "plain; lookup"]
    alone = cli(*command)
    samples = tmp_path / "samples.jsonl"
    beside = cli(*command, "--parallel", 3, "-o", samples)
    assert beside.exit_code == 0, beside.err
    kept = ("setting", "name", "answer", "metrics", "finish_reason", "n_new_tokens")
    for key in kept:
        found, wanted = ([s[key] for s in done.json["samples"]] for done in (beside, alone))
        assert found == wanted
    assert all(s["stats"]["n_reused_tokens"] == 0 for s in beside.json["samples"])
    assert beside.json["settings"][1]["metrics"] == alone.json["settings"][1]["metrics"]
    assert [{s["n_at_once"] for s in done.json["samples"]} for done in (alone, beside)] == [
        {1},
        {3},
    ]
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["setting"] * 2 + ["sample"] * 6
    refused = cli(*command, "--parallel", 1000)
    assert "--parallel is 1000, but a pass of this bundle holds at most" in refused.err


def test_one_setting_computes_common_beginnings_once(
    cli: Cli, small_bundle: Path, tmp_path: Path
) -> None:
    data = write(tmp_path / "many.jsonl", *MATHS * 3)
    command = ["eval", small_bundle, "--task", "gsm8k", "--data", data, "-n", 8, "--json"]
    alone, beside = (cli(*command, "--parallel", n).json["samples"] for n in (1, 2))
    assert [s["answer"] for s in beside] == [s["answer"] for s in alone]
    reused = [sum(s["stats"]["n_reused_tokens"] for s in some) for some in (alone, beside)]
    assert reused[0] == 0 < reused[1]


def test_programs_are_written_and_judged(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "code.jsonl", CODE)
    command = ["eval", small_bundle, "--task", "human_eval", "--data", data, "--json"]
    document = cli(*command, "-n", 48).json
    (sample,) = document["samples"]
    assert sample["metrics"]["passed"] in (0.0, 1.0)
    assert (sample["reason"] is None) == (sample["metrics"]["passed"] == 1)
    assert "audit hook" in document["programs_held_by"]
    raw = cli(*command, "-n", 8, "--raw").json
    assert raw["settings"][0]["facts"]["how"] == "raw prompts"
    assert raw["samples"][0]["n_prompt_tokens"] < sample["n_prompt_tokens"]


def test_a_text_is_predicted(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 12)
    command = ["eval", smollm2_bundle, "--task", "perplexity", "--data", text, "--json"]
    document = cli(*command, "--window", 64, "--stride", 48).json
    metrics = document["settings"][0]["metrics"]
    assert 1 < metrics["perplexity"]["value"] < 5  # it repeats itself
    text.write_text("dog lazy the over jumps fox brown quick The . zq xv " * 3)
    worse = cli(*command).json["settings"][0]["metrics"]
    assert worse["perplexity"]["value"] > 2 * metrics["perplexity"]["value"]


def test_a_picture(cli: Cli, small_bundle: Path, maths: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "quality.png"
    command = ["eval", small_bundle, "--task", "gsm8k", "--data", maths, "--limit", 1, "-n", 4]
    done = cli(*command, "--plot", picture)
    assert done.exit_code == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_what_is_wrong_comes_first(
    cli: Cli, small_bundle: Path, maths: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **named: Any) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(job_module, "load", fail)
    broken = tmp_path / "broken.jsonl"
    broken.write_text(maths.read_text() + '{"question": "unfinished\n')
    gsm8k = ["eval", small_bundle, "--task", "gsm8k"]

    def error(*arguments: object) -> str:
        done = cli(*arguments)
        assert done.exit_code == 1, done.err
        return str(done.error)

    assert "broken.jsonl:4: not valid JSON" in error(*gsm8k, "--data", broken, "--limit", 1)
    assert "question is None" in error(*gsm8k, "--data", write(tmp_path / "code", CODE))
    both = error(*gsm8k, "--data", maths, "--methods", "plain", "--method", "auto")
    assert "--method and --methods exclude each other" in both
    assert "such as plain,auto" in error(*gsm8k, "--data", maths, "--methods", "plain,,auto")
    assert "such as plain,auto" in error(*gsm8k, "--data", maths, "--settings", "plain;")
    assert "threshold" in error(*gsm8k, "--data", maths, "--switch", "ead:threshold=often")
    perplexity = ["eval", small_bundle, "--task", "perplexity", "--data", maths]
    assert "leave out the method" in error(*perplexity, "--method", "auto")
    assert "does not use --chat" in error(*perplexity, "--chat")
    assert "--window is 100000" in error(*perplexity, "--window", 100_000)
    assert "are for perplexity" in error(*gsm8k, "--data", maths, "--window", 8)
    assert "cannot read samples" in error("eval", "--compare", tmp_path / "nowhere")
    write(tmp_path / "empty.jsonl")
    assert "no samples" in error("eval", "--compare", tmp_path / "empty.jsonl")
    assert cli("eval", small_bundle, "--task", "gsm8k").exit_code == 2
    assert cli("eval").exit_code == 2


def test_what_the_model_cannot(cli: Cli, small_bundle: Path, maths: Path, tmp_path: Path) -> None:
    infill = {**CODE, "suffix": "\n", "canonical_solution": "    return 1"}
    data = write(tmp_path / "infill.jsonl", infill)
    done = cli("eval", small_bundle, "--task", "infill", "--data", data)
    assert "fim_prefix" in done.error
    gsm8k = ["eval", small_bundle, "--task", "gsm8k", "--data", maths]
    assert "maths.jsonl:1" in cli(*gsm8k, "--context", 100, "-n", 90).error
    assert "draft" in cli(*gsm8k, "--settings", "plain; ead:threshold=1").error
    assert "unknown method 'nosuch'" in cli(*gsm8k, "--methods", "plain,nosuch").error


def test_settings_become_requests() -> None:
    base = GenerationConfig(max_new_tokens=7)
    requests = make_requests(base, ["plain", "ead:threshold=1.5,mode=repair", "bild"])
    assert list(requests) == ["plain", "ead:threshold=1.5,mode=repair", "bild"]
    assert requests["plain"] == replace(base, method="plain")
    switch = requests["ead:threshold=1.5,mode=repair"].switch
    assert switch == SwitchConfig(threshold=1.5, mode="repair")
    facts = request_facts(requests["ead:threshold=1.5,mode=repair"])
    assert json.loads(json.dumps(facts, allow_nan=False))["switch"] == str(switch)


def test_switching_between_a_model_and_itself(cli: Cli, small_bundle: Path, maths: Path) -> None:
    command = ["eval", small_bundle, "--task", "gsm8k", "--data", maths, "-n", 8, "--limit", 2]
    settings = "plain; ead:threshold=inf; ead:threshold=-1"
    done = cli(*command, "--draft", small_bundle, "--settings", settings, "--json")
    assert done.err.count("this is approximate") == 1
    document = done.json
    assert [row["lossless"] for row in document["settings"]] == [True, False, False]
    for compared in document["comparisons"]:  # both models are the same, so nothing changes
        assert compared["n_same_answer"] == 2
    by_origin = [set(row["tokens_by_origin"]) for row in document["settings"]]
    assert by_origin == [{"target"}, {"draft"}, {"target"}]


@pytest.mark.parametrize("parallel", ["1", "4"])
def test_ctrl_c_keeps_what_was_done(small_bundle: Path, tmp_path: Path, parallel: str) -> None:
    data, samples = write(tmp_path / "d.jsonl", *MATHS * 100), tmp_path / "s.jsonl"
    process = subprocess.Popen(
        [*PROGRAM, "eval", str(small_bundle), "--task", "gsm8k", "--data", str(data), "-n", "64",
         "--ignore-eos", "-o", str(samples), "--json", "--parallel", parallel],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[1/300]"):
            process.send_signal(signal.SIGINT)
            break
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Traceback" not in err
    document = json.loads(out)
    assert not document["is_complete"]
    n_done = len(document["samples"])
    assert 1 <= n_done < 300
    kinds = [json.loads(line)["kind"] for line in samples.read_text().splitlines()]
    assert kinds.count("sample") == n_done


@pytest.mark.pair
def test_infilling(cli: Cli, find_model: Callable[[str], Path], tmp_path: Path) -> None:
    gguf, bundle = find_model("Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"), tmp_path / "q.edgedec"
    assert cli("export", gguf, "-o", bundle).exit_code == 0
    data = write(tmp_path / "infill.jsonl", {
        "task_id": "SingleLineInfilling/0", "entry_point": "add",
        "prompt": "def add(first, second):\n    # the sum of both\n",
        "suffix": "    return total\n",
        "canonical_solution": "    total = first + second\n",
        "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n",
    })  # fmt: skip
    document = cli("eval", bundle, "--task", "infill", "--data", data, "--json").json
    assert document["samples"][0]["metrics"] == {"passed": 1.0, "exact": 1.0}
