"""`edgedec bench` with tiny sizes: the shape of what it prints, never how fast it is."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.apps.bench import command as bench_verb
from edgedec.apps.bench.jobs import Test as BenchTest
from edgedec.apps.bench.jobs import make_tests, read_buffer_bytes
from edgedec.apps.bench.report import _runtime_cells
from edgedec.apps.bench.work import Work, bound
from edgedec.apps.measuring.loop import Bounds
from edgedec.apps.peers import EDGEDEC, PEERS, Runtime, edgedec_adapter
from edgedec.apps.peers.client import PeerError, Worker
from edgedec.apps.peers.instruction_sets import instruction_set
from edgedec.apps.results.result import read_result
from edgedec.kernels import cpu, library
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions
from edgedec.system.machine import last_caches

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("hasty_bench")]

TINY = ("-p", 8, "-n", 2, "-m", "1,2", "-t", 2, "-r", 2, "--allow-noise")


@pytest.fixture(autouse=True)
def _library() -> None:
    if not library.has_library():
        pytest.skip("the compiled kernels are missing")


@pytest.fixture(scope="module")
def document(small_bundle: Path) -> dict[str, Any]:
    """The JSON document of one run at two depths."""
    import subprocess

    arguments = ["bench", str(small_bundle), *map(str, TINY), "-d", "0,16", "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-c", "from edgedec.apps.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_json_has_a_row_for_every_test(document: dict[str, Any]) -> None:
    names = [row["test"] for row in document["rows"]]
    assert names == [
        "pp8", "tg2", "verify1", "verify2",
        "pp8 @ d16", "tg2 @ d16", "verify1 @ d16", "verify2 @ d16",
    ]  # fmt: skip
    for row in document["rows"]:
        assert row["runtime"] == "edgedec"
        assert row["tokens_per_s"]["mean"] > 0
        assert row["ms"]["std"] >= 0
        assert row["fraction_of_limit"] > 0
        assert row["bound_by"] in ("read", "int8")
        assert row["m"] == (row["n"] if row["kind"] == "verify" else None)


def test_ratios_are_those_of_medians(document: dict[str, Any]) -> None:
    rows = {row["test"]: row for row in document["rows"]}
    for suffix in ("", " @ d16"):
        one, two = rows[f"verify1{suffix}"], rows[f"verify2{suffix}"]
        assert one["ratio"] == 1.0
        assert two["ratio"] == pytest.approx(two["ms"]["median"] / one["ms"]["median"])
    assert rows["pp8"]["ratio"] is None


def test_json_says_what_ran_where(document: dict[str, Any]) -> None:
    assert document["limits"]["read_gb_s"] > 0
    assert document["limits"]["read_alone_gb_s"] > 0
    assert document["limits"]["int8_gmac_s"] > 0
    assert document["limits"]["isa"] == cpu.active_isa()
    assert document["threads"] == 2
    assert document["weight_bytes"] > 1e7
    assert document["device"]["n_usable"] >= 1
    assert document["build"]["edgedec"]
    (own,) = document["runtimes"]
    assert own["runtime"] == "edgedec"
    assert own["first_token_ms"] > own["load_ms"] > 0
    assert own["peak_rss_mb"] > 20
    assert document["missing"] == []
    assert document["noise"]["bounds"] == {"lost_share": 0.05, "spread": 0.1}


def test_markdown_has_the_fields_rows(cli: Callable[..., Any], small_bundle: Path) -> None:
    done = cli("bench", small_bundle, *TINY)
    assert done.exit_code == 0
    tables = [line for line in done.out.splitlines() if line.startswith("|")]
    assert any("| pp8 " in line and " ± " in line for line in tables)
    assert any("| tg2 " in line for line in tables)
    assert any("| verify2 " in line for line in tables)
    assert len({line.count("|") for line in tables}) <= 3
    assert "limits measured in this run: read" in done.out
    assert "one thread alone" in done.out


def test_texts_at_once(cli: Callable[..., Any], small_bundle: Path, tmp_path: Path) -> None:
    saved = tmp_path / "texts.json"
    command = ["bench", small_bundle, "-p", 0, "-m", 0, "-n", 4, "--texts", "1,3", "-r", 2,
               "--allow-noise", "-o", "json", "--save", saved]  # fmt: skip
    done = cli(*command)
    assert done.exit_code == 0, done.err
    rows = {row["test"]: row for row in done.json["rows"]}
    assert list(rows) == ["tg4", "tg4 x3"]
    assert rows["tg4 x3"]["n_texts"] == 3
    assert rows["tg4 x3"]["fraction_of_limit"] > 0
    assert [one.name for one in read_result(saved).quantities] == ["tg4", "tg4 x3"]


def test_csv_and_jsonl_hold_the_same_rows(cli: Callable[..., Any], small_bundle: Path) -> None:
    tiny = ("-p", 0, "-n", 2, "-m", 0, "-r", 1, "--allow-noise")
    lines = cli("bench", small_bundle, *tiny, "-o", "jsonl").out.splitlines()
    (record,) = map(json.loads, lines)
    assert record["test"] == "tg2"
    assert record["tokens_per_s_mean"] > 0
    text = cli("bench", small_bundle, *tiny, "-o", "csv").out
    (row,) = csv.DictReader(io.StringIO(text))
    assert list(row) == list(record)
    assert float(row["ms_median"]) > 0


def test_a_missing_peer_is_named_and_the_run_goes_on(
    cli: Callable[..., Any], small_bundle: Path, smollm2_gguf: Path, tmp_path: Path
) -> None:
    bare = tmp_path / "python"  # a Python with nothing installed
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    bare.chmod(0o755)
    done = cli(
        "bench", small_bundle, "-p", 0, "-n", 2, "-m", 0, "-r", 1, "--allow-noise", "-o", "json",
        "--against", "openvino,onnxruntime-genai", "--model", smollm2_gguf,
        "--peer-python", bare, "--peer-python", "openvino=/nowhere/python",
    )  # fmt: skip
    assert done.exit_code == 0
    reasons = {peer["runtime"]: peer["reason"] for peer in done.json["missing"]}
    assert "pip install onnxruntime-genai" in reasons["onnxruntime-genai"]
    assert "cannot start /nowhere/python" in reasons["openvino"]
    assert [row["runtime"] for row in done.json["rows"]] == ["edgedec"]


def test_a_peer_that_dies_does_not_take_the_run_along(
    cli: Callable[..., Any],
    small_bundle: Path,
    smollm2_gguf: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = tmp_path / "mortal_adapter.py"
    adapter.write_text(
        "import os, sys\n"
        "class Model:\n"
        "    facts = {'through': 'a test', 'format': 'none', 'threads': 1}\n"
        "    n = 0\n"
        "    def decode(self, depth, n):\n"
        "        self.n += 1\n"
        "        if self.n > 2:\n"
        "            print('out of luck', file=sys.stderr)\n"
        "            os._exit(7)\n"
        "        return 0.01\n"
        "def open_model(spec):\n"
        "    print('this belongs nowhere near the answers')\n"
        "    return Model()\n"
    )
    monkeypatch.setitem(PEERS, "llama.cpp", Runtime("llama.cpp", str(adapter), ("nothing",)))
    done = cli(
        "bench", small_bundle, "-p", 0, "-n", 2, "-m", 0, "-r", 2, "--allow-noise", "-o", "json",
        "--against", "llama.cpp", "--model", smollm2_gguf,
    )  # fmt: skip
    assert done.exit_code == 0
    (dead,) = done.json["missing"]
    assert dead["reason"] == "its process ended with code 7: out of luck"
    assert [row["runtime"] for row in done.json["rows"]] == ["edgedec"]


def test_a_disturbed_run_is_refused(
    cli: Callable[..., Any], small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = bench_verb.Plan

    def strict(**fields: Any) -> Any:
        return plan(**{**fields, "bounds": Bounds(spread=-1.0), "extra_repetitions": 0})

    monkeypatch.setattr(bench_verb, "Plan", strict)
    done = cli("bench", small_bundle, "-p", 0, "-n", 2, "-m", 0, "-r", 1)
    assert done.exit_code == 1
    assert done.error.startswith("error: the run was disturbed: ")
    assert "--allow-noise" in done.error
    marked = cli("bench", small_bundle, "-p", 0, "-n", 2, "-m", 0, "-r", 1, "--allow-noise")
    assert "(noisy)" in marked.out


def test_plot(cli: Callable[..., Any], small_bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "speed.png"
    assert cli("bench", small_bundle, *TINY, "--plot", picture).exit_code == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    nowhere = tmp_path / "nowhere" / "speed.png"
    assert "there is no folder" in cli("bench", small_bundle, "--plot", nowhere).error
    unknown = tmp_path / "speed.xyz"
    assert "expected one of ." in cli("bench", small_bundle, "--plot", unknown).error


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", 0, "-n", 0, "-m", 0), "nothing to measure"),
        (("-p", 99999), "need 99999 positions"),
        (("--against", "gpt"), "--against got 'gpt'"),
        (("--against", "llama.cpp"), "name one with --model"),
        (("--against", "llama.cpp", "--model", "/no/such.gguf"), "there is no model at"),
        (("--peer-model", "abc"), "--peer-model got 'abc'"),
        (("--peer-model", "openvino=a", "--peer-model", "openvino=b"), "got a and b: give one"),
    ],
)  # fmt: skip
def test_mistakes_are_failures_in_one_line(
    cli: Callable[..., Any], small_bundle: Path, arguments: tuple[object, ...], words: str
) -> None:
    done = cli("bench", small_bundle, *arguments)
    assert done.exit_code == 1
    assert words in done.error


_ALONE = "name some with --against, such as llama.cpp"
_LLAMA = ("--against", "llama.cpp", "--peer-model", "llama.cpp=m.gguf")


@pytest.mark.parametrize(
    "mode", [(), ("--prompts", "prompts.jsonl"), ("--typing", "text.txt")], ids=str
)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "m.gguf"), f"--model is for peers: {_ALONE}"),
        (("--model", "m.gguf", *_LLAMA), "--model is for peers: each of them has one of its own"),
        (("--peer-model", "openvino=m", *_LLAMA), "--peer-model names openvino, which is not"),
        (("--peer-python", "/usr/bin/python3"), f"--peer-python is for peers: {_ALONE}"),
        (("--peer-python", "openvino=/usr/bin/python3"), "--peer-python names openvino, which"),
        (("--peer-draft", "d.gguf", *_LLAMA), "--peer-draft is for peers that draft: use"),
    ],
)  # fmt: skip
def test_options_of_peers_that_are_not_measured_are_refused_by_name(
    cli: Callable[..., Any], small_bundle: Path, mode: tuple[str, ...],
    arguments: tuple[str, ...], words: str,
) -> None:  # fmt: skip
    done = cli("bench", small_bundle, *mode, *arguments)
    assert done.exit_code == 1
    assert words in done.error


_MODES = {
    "prompts": ("--prompts", "prompts.jsonl"),
    "ttft": ("--ttft", "8", "--text", "text.txt"),
    "typing": ("--typing", "text.txt"),
    "edits": ("--edits", "edits.jsonl"),
}
_PEERS = {
    "--against": "llama.cpp", "--model": "m.gguf", "--peer-model": "llama.cpp=m.gguf",
    "--peer-draft": "d.gguf", "--peer-python": "/usr/bin/python3",
}  # fmt: skip
_REPEATS = {"--repetitions": "1", "--allow-noise": None}
_WITHOUT_EFFECT = {
    "ttft": {**_PEERS, "--plot": "a.png"},
    "typing": _REPEATS,
    "edits": {**_PEERS, **_REPEATS, "--plot": "a.png", "--save": "a.json"},
}
_OF_ONE_MODE = {
    "prompts": ("--methods", "plain"), "ttft": ("--answer-tokens", "2"),
    "typing": ("--typing-methods", "plain"), "edits": ("--edit-methods", "plain"),
    None: ("--rows", "4"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "option"),
    [(mode, (name, value)) for mode, unused in _WITHOUT_EFFECT.items()
     for name, value in unused.items()]
    + [(mode, option) for mode in _MODES for other, option in _OF_ONE_MODE.items()
       if other != mode],
)  # fmt: skip
def test_options_without_effect_are_refused_by_name(
    cli: Callable[..., Any], small_bundle: Path, mode: str, option: tuple[str, str | None]
) -> None:
    arguments = [part for part in option if part is not None]
    done = cli("bench", small_bundle, *_MODES[mode], *arguments)
    assert done.exit_code == 1
    assert f"{option[0]} cannot be combined with --{mode}" in done.error


def test_bad_lists_are_usage_errors(cli: Callable[..., Any], small_bundle: Path) -> None:
    for text in ("1,x", "-3", ""):
        assert cli("bench", small_bundle, f"--rows={text}").exit_code == 2


def test_a_worker_reports_a_broken_bundle(tmp_path: Path) -> None:
    spec = {"path": str(tmp_path), "threads": 1, "context": 8, "ids": [1, 2]}
    with pytest.raises(PeerError, match=r"manifest\.json"):
        Worker(EDGEDEC, sys.executable, spec)


def test_tests_cover_every_depth() -> None:
    found = make_tests((512,), (128,), (0, 1), (0, 64))
    assert [test.name for test in found] == [
        "pp512", "tg128", "verify1", "pp512 @ d64", "tg128 @ d64", "verify1 @ d64",
    ]  # fmt: skip
    assert [test.n_positions for test in found[:3]] == [512, 129, 1]
    several = make_tests((0,), (96,), (0,), (0,), (1, 8))
    assert [test.name for test in several] == ["tg96", "tg96 x8"]


def test_bounds_follow_the_slower_limit() -> None:
    work = Work(weight_bytes=1000, layer_macs=1500, head_macs=500, kv_bytes=10)
    assert work.of(BenchTest("tg", 128)) == (1000, 2000)
    assert work.of(BenchTest("tg", 128, n_texts=4)) == (250, 2000)
    assert work.of(BenchTest("verify", 4, depth=3)) == (1030, 8000)
    assert work.of(BenchTest("pp", 4)) == (1000, 6500)
    windowed = replace(work, window_bytes={5: 2, 9: 4})
    assert windowed.of(BenchTest("tg", 128, depth=7))[0] == 1000 + 70 + 5 * 2 + 7 * 4
    one = bound(work, BenchTest("verify", 1), read_gb_s=1.0, int8_gmac_s=4.0)
    assert (one.limit, one.seconds) == ("read", pytest.approx(1e-6))
    many = bound(work, BenchTest("verify", 8), read_gb_s=1.0, int8_gmac_s=4.0)
    assert (many.limit, many.seconds) == ("int8", pytest.approx(4e-6))


def test_the_read_buffer_exceeds_the_caches() -> None:
    assert read_buffer_bytes() % 4096 == 0
    assert read_buffer_bytes() > max((c.size_bytes for c in last_caches()), default=0)


@pytest.mark.parametrize(
    ("system", "isa"),
    [
        ("AVX = 1 | AVX_VNNI = 0 | AVX2 = 1 | AVX512 = 0 | FMA = 1 | ", "avx2"),
        ("CPU : SSE3 = 1 | AVX = 1 | AVX2 = 1 | AVX512 = 1 | AVX512_VNNI = 1 | ", "avx512vnni"),
        ("AVX512_VNNI = 1 | AVX512_BF16 = 1 | AMX_INT8 = 1 | ", "avx512amx"),
        ("CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | ", "neondot"),
        ("", None),
    ],
)
def test_instruction_set_of_a_peer(system: str, isa: str | None) -> None:
    assert instruction_set(system) == isa


def test_a_lesser_build_of_a_peer_is_marked() -> None:
    facts = {
        "runtime": "ik_llama.cpp", "model": "m.gguf", "through": "a loop", "load_ms": 1.0,
        "first_token_ms": 2.0, "peak_rss_mb": None, "isa": "avx2",
    }  # fmt: skip
    assert "avx2: less than avx512vnni" in _runtime_cells(facts, "avx512vnni")[3]
    assert _runtime_cells(facts, "avx2")[3] == "a loop, avx2"
    assert _runtime_cells(facts | {"isa": "avx512amx"}, "avx512vnni")[3] == "a loop, avx512amx"
    assert _runtime_cells(facts | {"isa": None}, "avx2")[3] == "a loop"


def test_rows_of_many_tokens_are_copies(
    small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgedec_adapter, "_MAX_COMPUTED", 32)
    ids = [int(i) for i in np.random.default_rng(0).integers(0, 49_000, 101)]
    engine = load(small_bundle, EngineOptions(context=128, threads=1))
    with engine:
        model = edgedec_adapter.Model(engine, {"ids": ids, "threads": 1})
        for depth in (16, 80, 40, 80):
            assert model.verify(depth, 2) is not None
            assert list(model._sequence.tokens) == ids[:depth]
        for rows in model._sequence.snapshot().kv_rows.values():
            assert (rows[:, :, 32:64] == rows[:, :, :32]).all()
            assert (rows[:, :, 64:] == rows[:, :, :16]).all()
            assert (rows[:, :, 1] != rows[:, :, 0]).any()
