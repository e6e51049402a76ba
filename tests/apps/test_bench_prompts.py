"""`edgedec bench --prompts`: what it reads, runs and prints, never how fast it is."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec.apps.bench import prompts as bench_prompts
from edgedec.apps.bench.prompts_jobs import Method, TimedOutput
from edgedec.apps.measuring.disturbance import MeasuringWindow
from edgedec.apps.peers import PEERS, Runtime
from edgedec.kernels import library
from edgedec.models.errors import SessionError

Cli = Callable[..., Any]

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("hasty_bench")]

LINES: list[dict[str, Any]] = [
    {"question_id": 7, "subtask": "copying", "turns": ["Say this again: one two three.", "x"]},
    {"task_id": "T/0", "prompt": "def add(a, b):\n", "canonical_solution": "    return a + b\n"},
    {"messages": [{"role": "user", "content": "Say hello."}], "subtask": "copying"},
]


@pytest.fixture(autouse=True)
def _library() -> None:
    if not library.has_library():
        pytest.skip("the compiled kernels are missing")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "few.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


@pytest.fixture
def bench(cli: Cli, small_bundle: Path, prompts: Path) -> Cli:
    """Returns a function that runs the verb with few tokens; the last of equal options counts."""

    def run(*options: object) -> Any:
        tiny = ("--max-new-tokens", 6, "-t", 2, "-r", 1, "--allow-noise")
        return cli("bench", small_bundle, "--prompts", prompts, *tiny, *options)

    return run


@pytest.fixture
def peer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, smollm2_gguf: Path
) -> Callable[[str], tuple[object, ...]]:
    """Returns a maker of options for a fake llama.cpp, whose `generate` is given as source."""

    def make(body: str) -> tuple[object, ...]:
        adapter = tmp_path / "fake_adapter.py"
        adapter.write_text(
            "import os\n"
            "class Model:\n"
            "    facts = {'through': 'a test', 'threads': 2, 'n_drafted': 5,\n"
            "             'modes': {'lookup': 'looks back', 'draft': 'asks another'}}\n"
            "    n_runs = 0\n"
            "    def __init__(self, spec):\n"
            "        self.spec = spec\n"
            "    def decode(self, depth, n):\n"
            "        return 0.01\n"
            "    def generate(self, ids, n, mode, n_drafted):\n"
            "        self.n_runs += 1\n"
            f"        {body}\n"
            "def open_model(spec):\n"
            "    return Model(spec)\n"
        )
        fake = Runtime("llama.cpp", str(adapter), ("nothing",), ("plain", "lookup", "draft"))
        monkeypatch.setitem(PEERS, "llama.cpp", fake)
        return ("--model", smollm2_gguf)

    return make


def rows_of(document: dict[str, Any], level: str, name: str) -> list[dict[str, Any]]:
    return [r for r in document["rows"] if (r["level"], r["name"]) == (level, name)]


def test_json_has_rows_of_all_levels(bench: Cli) -> None:
    done = bench("--methods", "lookup,auto", "-r", 2, "-o", "json")
    assert done.exit_code == 0, done.err
    document = done.json
    assert [facts["name"] for facts in document["contestants"]] == ["plain", "lookup", "auto"]
    for name in ("plain", "lookup", "auto"):
        (whole,) = rows_of(document, "all", name)
        assert whole["n_prompts"] == whole["n_identical"] == 3
        assert whole["tokens_per_s"] > 0
        assert whole["worst_speedup"] <= whole["speedup"]
        categories = rows_of(document, "category", name)
        assert [(r["category"], r["n_prompts"]) for r in categories] == [("copying", 2), ("few", 1)]
        each = rows_of(document, "prompt", name)
        assert [r["prompt"] for r in each] == ["7", "T/0", "few.jsonl:3"]
        assert sum(r["n_accepted"] for r in each) == whole["n_accepted"]
    (plain,) = rows_of(document, "all", "plain")
    assert plain["speedup"] == plain["worst_speedup"] == plain["block_efficiency"] == 1.0
    assert document["settings"]["template"] == "chat"
    assert document["settings"]["learning"] == "hot"
    assert (document["n_rounds"], document["n_rounds_planned"]) == (6, 6)


def test_sampling_is_the_same_for_all_methods(
    bench: Cli, small_bundle: Path, cheap_rows: None
) -> None:
    hot = ("--temperature", 0.8, "--seed", 5, "--max-new-tokens", 24)
    done = bench("--methods", "plain,auto,lookup+recycling", *hot, "-o", "json", "--ignore-eos")
    assert done.exit_code == 0, done.err
    assert (done.json["settings"]["temperature"], done.json["settings"]["seed"]) == (0.8, 5)
    for name in ("plain", "auto", "lookup+recycling"):
        (whole,) = rows_of(done.json, "all", name)
        assert whole["n_identical"] == 3
        assert whole["n_new_tokens"] == 72
    assert whole["n_accepted"] > 0
    assert 0 < whole["acceptance_rate"] < 1


def test_sampling_is_reported(bench: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, int]] = []
    real = edgedec.Engine.generate

    def spy(engine: edgedec.Engine, prompt: Any, config: Any) -> Any:
        asked.append((config.sampling.temperature, config.seed))
        return real(engine, prompt, config)

    monkeypatch.setattr(edgedec.Engine, "generate", spy)
    assert (
        "; temperature 0.5, seed 9, 6 new tokens"
        in bench("--methods", "plain", "--temperature", 0.5, "--seed", 9).out
    )
    assert set(asked) == {(0.5, 9)}
    asked.clear()
    assert "; greedy, 6 new tokens" in bench("--methods", "plain").out
    assert set(asked) == {(0.0, 0)}


def test_n_is_the_number_of_tokens_that_are_decoded(
    cli: Cli, small_bundle: Path, prompts: Path
) -> None:
    command = ("bench", small_bundle, "--prompts", prompts, "-t", 2, "-r", 1, "--allow-noise")
    document = cli(*command, "--methods", "lookup", "-n", 5, "-o", "json").json
    assert document["settings"]["max_new_tokens"] == 5
    for name in ("plain", "lookup"):
        assert [row["n_new_tokens"] for row in rows_of(document, "prompt", name)] == [5, 5, 5]
    for wrong in ("1", "8,16", "many"):
        assert f"-n is {wrong}, expected one number" in cli(*command, "-n", wrong).error


def test_prompts_are_encoded_as_run_does(bench: Cli, small_bundle: Path) -> None:
    chat = bench("--methods", "plain", "-o", "json").json
    (first, second, third) = rows_of(chat, "prompt", "plain")
    with edgedec.load(small_bundle) as engine:
        messages = [{"role": "user", "content": LINES[0]["turns"][0]}]
        assert first["n_prompt_tokens"] == len(engine.encode(messages))
        assert third["n_prompt_tokens"] == len(engine.encode(LINES[2]["messages"]))
        n_raw = len(engine.encode(LINES[1]["prompt"]))
    assert second["n_prompt_tokens"] > n_raw
    raw = bench("--raw")
    assert "few.jsonl:3 has messages" in raw.error


def test_tables(bench: Cli, tmp_path: Path) -> None:
    done = bench("--methods", "plain,lookup")
    assert done.exit_code == 0
    tables = [line for line in done.out.splitlines() if line.startswith("|")]
    assert any(line.startswith("| lookup ") and "3 of 3" in line for line in tables)
    assert any(line.startswith("| copying ") and "2 of 2" in line for line in tables)
    assert any("T/0" in line and "| few " in line for line in tables)
    assert "prompts in the chat template" in done.out
    assert "keep what they learned" in done.out
    assert "[3/3] few.jsonl:3: plain " in done.err


def test_csv_and_jsonl_hold_the_same_rows(bench: Cli) -> None:
    lines = bench("--methods", "plain", "-o", "jsonl").out.splitlines()
    records = [json.loads(line) for line in lines]
    rows = list(csv.DictReader(io.StringIO(bench("--methods", "plain", "-o", "csv").out)))
    assert [list(row) for row in rows] == [list(record) for record in records]
    assert [row["prompt"] for row in rows] == ["", "", "", "7", "T/0", "few.jsonl:3"]
    assert records[0]["max_new_tokens"] == 6


def test_peers_generate_as_many_tokens_as_plain(bench: Cli, peer: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = peer(
        f"open({str(log)!r}, 'a').write(f'{{len(ids)}} {{n}} {{mode}} {{n_drafted}} '"
        " + str(self.spec['draft']) + chr(10)); return [1] * n, 0.5, 0.001 * (n - 1)"
    )
    done = bench(
        *options, "--against", "llama.cpp,llama.cpp+lookup7,llama.cpp+draft", "-o", "json",
        "--methods", "plain", "--peer-draft", options[1], "--max-new-tokens", 40,
    )  # fmt: skip
    assert done.exit_code == 0, done.err
    document = done.json
    asked = [line.split() for line in log.read_text().splitlines()]
    plain = rows_of(document, "prompt", "plain")
    expected = [(str(r["n_prompt_tokens"]), str(r["n_new_tokens"])) for r in plain]
    for kind, n_drafted in (("plain", "None"), ("lookup", "7"), ("draft", "None")):
        runs = [line for line in asked if line[2] == kind][1:]  # the first one warms up
        assert [(line[0], line[1]) for line in runs] == expected
        assert {line[3] for line in runs} == {n_drafted}
    assert {line[4] for line in asked} == {str(options[1])}
    (whole,) = rows_of(document, "all", "llama.cpp+lookup7")
    assert whole["tokens_per_s"] == pytest.approx(1000)
    assert whole["n_identical"] == 0
    modes = {facts["name"]: facts.get("mode") for facts in document["contestants"]}
    assert modes["llama.cpp"] is None
    assert modes["llama.cpp+lookup7"] == "looks back; 7 tokens drafted at a time"
    assert modes["llama.cpp+draft"] == "asks another; 5 tokens drafted at a time"
    (own,) = rows_of(document, "all", "plain")
    assert own["over_fastest_peer"] == pytest.approx(own["tokens_per_s"] / 1000)


def test_a_peer_that_dies_does_not_take_the_run_along(bench: Cli, peer: Any) -> None:
    options = peer("os._exit(7) if self.n_runs > 2 else 0; return [1] * n, 0.5, 0.1")
    done = bench(*options, "--against", "llama.cpp", "--methods", "plain", "-o", "json")
    assert done.exit_code == 0
    (dead,) = done.json["missing"]
    assert dead == {"name": "llama.cpp", "reason": "its process ended with code 7"}
    assert len(rows_of(done.json, "prompt", "plain")) == 3
    assert len(rows_of(done.json, "prompt", "llama.cpp")) == 1


class Spy:
    """Stands in for `Method.generate`: notes who ran, and fails on request."""

    def __init__(self, fail_at: int | None = None, error: BaseException | None = None) -> None:
        self.events: list[str] = []
        self.n_runs = 0
        self.fail_at, self.error = fail_at, error

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = Method.generate

        def run(
            method: Method, ids: Sequence[int], n_tokens: int, prediction: str = ""
        ) -> TimedOutput:
            self.n_runs += 1
            if self.n_runs == self.fail_at and self.error is not None:
                raise self.error
            self.events.append(f"{method.name} {len(ids)}")
            found = real(method, ids, n_tokens, prediction)
            assert found.stats is not None
            assert found.stats.n_reused_tokens == 0
            return found

        def forget(method: Method) -> None:
            self.events.append(f"{method.name} forgets")

        monkeypatch.setattr(Method, "generate", run)
        monkeypatch.setattr(Method, "forget", forget)


@pytest.mark.parametrize(("option", "n_times"), [((), 2), (("--cold",), 6)])
def test_nothing_learned_outlives_a_repetition(
    bench: Cli, monkeypatch: pytest.MonkeyPatch, option: tuple[str, ...], n_times: int
) -> None:
    spy = Spy()
    spy.install(monkeypatch)
    done = bench("--methods", "plain,lookup", "-r", 2, *option)
    assert done.exit_code == 0
    for name in ("plain", "lookup"):
        assert spy.events.count(f"{name} forgets") == n_times
    first_timed = spy.events.index("plain forgets")
    assert [event.split()[0] for event in spy.events[:first_timed]] == ["plain", "lookup"]
    runs = [event.split()[0] for event in spy.events[first_timed:] if "forgets" not in event]
    assert runs[:6] == ["plain", "lookup"] * 3
    assert runs[6:] == ["lookup", "plain", "plain", "lookup", "lookup", "plain"]


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (SessionError("out of tea"), 1)]
)
def test_what_is_done_is_printed_when_a_run_ends_early(
    bench: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    Spy(fail_at=2 * 2 + 3, error=error).install(monkeypatch)  # the third prompt's first run
    done = bench("--methods", "plain,lookup", "-o", "json")
    assert done.exit_code == code
    assert (done.json["n_rounds"], done.json["n_rounds_planned"]) == (2, 3)
    assert [row["prompt"] for row in rows_of(done.json, "prompt", "lookup")] == ["7", "T/0"]
    assert "Traceback" not in done.err
    assert ("out of tea" in done.err) == (code == 1)


def test_nothing_done_is_nothing_printed(bench: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    Spy(fail_at=1, error=KeyboardInterrupt()).install(monkeypatch)
    done = bench("--methods", "plain")
    assert (done.exit_code, done.out) == (130, "")


def test_a_disturbed_run_fails_after_it_printed(
    cli: Cli, bench: Cli, small_bundle: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Busy:
        def __init__(self, clock: object) -> None: ...
        def start(self) -> None: ...
        def stop(self, n_threads: int, own_s: float) -> MeasuringWindow:
            return MeasuringWindow(wanted_s=1.0, own_s=0.5, others_s=0.5, stolen_s=0.0, spare_s=0.0)

    monkeypatch.setattr(bench_prompts, "Watch", Busy)
    given = ("--prompts", prompts, "--methods", "plain", "--max-new-tokens", 4, "-r", 1)
    done = cli("bench", small_bundle, *given)
    assert done.exit_code == 1
    assert "(noisy)" in done.out
    assert "other processes took 50% of the CPU time" in done.err
    assert bench("--methods", "plain").exit_code == 0


def test_plot(bench: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "speedup.png"
    assert bench("--methods", "plain,lookup", "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--methods", "plain,draft"), "method draft needs a draft model"),
        (("--methods", "plain,lookup+draft"), "method lookup+draft needs a draft model"),
        (("--draft-device", "CPU"), "draft_device need a draft model, and there is none"),
        (("--methods", "plain,magic"), "unknown method 'magic'"),
        (("--methods", "plain,,auto"), "--methods got"),
        (("--max-new-tokens", 9000), "few.jsonl:1: prompt and output need"),
        (("--category-key", "colour"), "few.jsonl:1: no field 'colour'"),
        (("-p", 5), "--prompt-tokens cannot be combined with --prompts"),
        (("--rows", "1"), "--rows cannot be combined with --prompts"),
        (("--against", "gpt"), "--against got 'gpt'"),
        (("--against", "llama.cpp+magic"), "expected of this peer: llama.cpp, llama.cpp+lookup"),
        (("--against", "onnxruntime-genai+draft"), "expected of this peer"),
        (("--against", "llama.cpp+plain2"), "expected of this peer"),
        (("--against", "llama.cpp"), "name one with --model"),
    ],
)  # fmt: skip
def test_mistakes_are_failures_in_one_line(
    bench: Cli, arguments: tuple[object, ...], words: str
) -> None:
    done = bench(*arguments)
    assert done.exit_code == 1
    assert words in done.error


def test_options_that_do_not_fit_together(
    cli: Cli, bench: Cli, small_bundle: Path, smollm2_gguf: Path
) -> None:
    draft = ("--against", "llama.cpp+draft", "--model", smollm2_gguf)
    assert "none was named: use --peer-draft" in bench(*draft).error
    assert "there is none at /no/such" in bench(*draft, "--peer-draft", "/no/such").error
    assert (
        "name some with --prompts"
        in cli("bench", small_bundle, *draft[:1], "llama.cpp+lookup", *draft[2:]).error
    )
    hot = ("--temperature", 0.8, "--against", "llama.cpp", "--model", smollm2_gguf)
    assert "--temperature is 0.8, and peers decode greedily" in bench(*hot).error
    assert "--cold needs --prompts FILE.jsonl" in cli("bench", small_bundle, "--cold").error
    assert bench("--max-new-tokens", 1).exit_code == 2
