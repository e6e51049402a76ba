"""Fleets of boards that ssh reaches."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from distributed import LocalCluster

from edgedec.apps.fleet.config import read_fleet
from edgedec.apps.results.result import read_result

pytestmark = pytest.mark.e2e

_PROBLEMS = [("double", "2 * x"), ("triple", "3 * x"), ("negate", "-x"), ("square", "x * x"),
             ("half", "x / 2"), ("same", "x")]  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Problems as HumanEval has them."""
    rows = [
        {
            "task_id": f"own/{i}",
            "prompt": f'def {name}(x):\n    """Return {value}."""\n',
            "test": f"def check(f):\n    x = 3\n    assert f(x) == {value}\n",
            "entry_point": name,
        }
        for i, (name, value) in enumerate(_PROBLEMS)
    ]
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def fleet_file(tmp_path: Path, *tables: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text("\n".join(tables))
    return path


def answers(path: Path) -> dict[tuple[str, str], Any]:
    """Setting and problem -> everything of a sample that is no time and no count of drafts."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    order = [one["label"] for one in lines if one["kind"] == "setting"]
    prints = dict.fromkeys(one["fingerprint"] for one in lines if one["kind"] == "sample")
    labels = dict(zip(prints, order, strict=True))
    kept = ("metrics", "answer", "reason", "finish_reason", "n_prompt_tokens", "n_new_tokens")
    return {
        (labels[one["fingerprint"]], one["name"]): [one[name] for name in kept]
        for one in lines
        if one["kind"] == "sample"
    }


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits for what a fleet does after a dozen programs have started, which takes a while."""
    ends_s = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def asked(data: Path) -> list[Any]:
    return ["--task", "human_eval", "--data", data, "-n", 24, "--settings", "plain;lookup"]


def test_a_shared_evaluation_is_that_of_a_run_alone(
    cli: Any, make_board: Any, small_bundle: Path, data: Path, tmp_path: Path
) -> None:
    """One host vanishes in the middle and comes back; nothing is lost and nothing is double."""
    boards = [make_board("one"), make_board("two")]
    file = fleet_file(
        tmp_path, boards[0].table(), boards[1].table() + 'environment = {EDGEDEC_ISA = "scalar"}\n'
    )
    tasks = tmp_path / "found/tasks"

    def cut() -> None:
        wait_for(lambda: tasks.is_dir() and len(list(tasks.glob("*/*.json"))) >= 1)
        boards[0].vanish()
        boards[0].start()

    cutting = threading.Thread(target=cut)
    cutting.start()
    shared = cli("fleet", "eval", file, small_bundle, *asked(data), "-o", tmp_path / "found")
    cutting.join()
    assert shared.exit_code == 0, shared.err
    assert "one: the connection was lost; trying again" in shared.err
    alone = cli("eval", small_bundle, *asked(data), "-o", tmp_path / "alone.jsonl",
                "--save", tmp_path / "alone.json")  # fmt: skip
    assert alone.exit_code == 0, alone.err
    found = answers(tmp_path / "found/samples.jsonl")
    assert found == answers(tmp_path / "alone.jsonl")
    assert len((tmp_path / "found/samples.jsonl").read_text().splitlines()) == 2 + 12

    result = read_result(tmp_path / "found/result.json")
    assert (result.label, result.kind) == ("fleet of 2", "eval")
    assert {len(one.values) for one in result.quantities} == {6}
    page = cli("compare", tmp_path / "alone.json", tmp_path / "found/result.json", "-o", "html")
    assert page.exit_code == 0, page.err
    assert "fleet of 2" in page.out

    n_before = [board.n_commands for board in boards]
    again = cli("fleet", "eval", file, small_bundle, *asked(data), "-o", tmp_path / "found")
    assert "12 of 12 samples are there already" in again.err
    assert again.out.split("| host")[0] == shared.out.split("| host")[0]
    assert [board.n_commands for board in boards] == n_before  # nobody is asked for nothing


def test_every_host_measures_once(
    cli: Any, make_board: Any, small_bundle: Path, tmp_path: Path
) -> None:
    boards = [make_board("one"), make_board("two")]
    file = fleet_file(tmp_path, *(board.table() for board in boards))
    command = ["fleet", "bench", file, small_bundle, "-o", tmp_path / "r",
               "-p", 0, "-n", 0, "-m", 1, "-r", 2, "--allow-noise"]  # fmt: skip
    boards[1].vanish()
    first = cli(*command, "--wait", 0)
    assert first.exit_code == 1
    assert "no result of two: cannot connect" in first.error
    assert [path.name for path in (tmp_path / "r").glob("*.json")] == ["one.json"]
    boards[1].start()
    second = cli(*command)
    assert second.exit_code == 0, second.err
    assert "one: was measured already" in second.err
    results = [read_result(tmp_path / "r" / f"{board.name}.json") for board in boards]
    assert [result.label for result in results] == ["one", "two"]
    compared = cli("compare", *sorted((tmp_path / "r").glob("*.json")), "--allow-noise")
    assert compared.exit_code == 0, compared.err
    # What was copied is there once, under the hash of its files.
    assert len(list((boards[0].folder / "files").iterdir())) == 1


def test_an_export_is_made_and_copied_once(
    cli: Any, make_board: Any, small_model: Path, tmp_path: Path
) -> None:
    boards = [make_board("one"), make_board("two")]
    file = fleet_file(tmp_path, *(board.table() for board in boards))
    command = ["fleet", "export", file, small_model, "-o", tmp_path / "bundles"]
    boards[1].vanish()
    first = cli(*command)
    assert first.exit_code == 1
    assert "two: cannot connect" in first.error
    boards[1].start()
    second = cli(*command)
    assert second.exit_code == 0, second.err
    (bundle,) = (tmp_path / "bundles").iterdir()
    assert f"{bundle.name} is there already" in second.err
    assert f"one: {bundle.name} was there" in second.err
    assert f"two: {bundle.name} copied" in second.err
    checked = cli("fleet", "doctor", file, "--bundle", tmp_path / "bundles", "--json")
    assert checked.exit_code == 0, checked.err
    for board in boards:
        (copy,) = (board.folder / "files").iterdir()
        names = sorted(path.relative_to(copy) for path in copy.rglob("*") if path.is_file())
        assert names == sorted(p.relative_to(bundle) for p in bundle.rglob("*") if p.is_file())
        assert all((copy / name).read_bytes() == (bundle / name).read_bytes() for name in names)


def test_what_does_not_fit_on_a_host_is_not_copied(
    cli: Any, make_board: Any, small_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = make_board("small")
    # The board's worker is another process, which reads its disk in a package of its own.
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(
        "import shutil\n"
        "found = shutil.disk_usage\n"
        "shutil.disk_usage = lambda path: found(path)._replace(free=1000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(patch))
    file = fleet_file(tmp_path, board.table())
    done = cli("fleet", "bench", file, small_bundle, "-o", tmp_path / "r", "-p", 0, "-n", 0, "-m",
               1, "-r", 2, "--allow-noise")  # fmt: skip
    assert done.exit_code == 1
    assert "its disk has 1.0 kB left" in done.error
    assert "free some, or set `workspace`" in done.error
    assert not list(board.folder.glob("files/*"))


def test_a_host_without_sftp_is_left_out_at_once(
    cli: Any, make_board: Any, small_bundle: Path, tmp_path: Path
) -> None:
    board = make_board("bare")
    board.vanish()
    board.has_sftp = False
    board.start()
    file = fleet_file(tmp_path, board.table())
    done = cli("fleet", "bench", file, small_bundle, "-o", tmp_path / "r", "-p", 0, "-n", 0, "-m",
               1, "-r", 2, "--allow-noise")  # fmt: skip
    assert done.exit_code == 1
    assert "it offers no SFTP" in done.error
    assert "Subsystem sftp" in done.error


def test_doctor_names_what_is_wrong(cli: Any, make_board: Any, tmp_path: Path) -> None:
    well, changed, bare, odd = (make_board(name) for name in ("well", "changed", "bare", "odd"))
    changed.vanish()
    changed.host_key = asyncssh.generate_private_key("ssh-ed25519")
    changed.start()
    file = fleet_file(
        tmp_path,
        well.table(),
        changed.table(),
        bare.table(python="/usr/bin/no-such-python"),
        odd.table() + 'environment = {EDGEDEC_ISA = "imaginary"}\n',
    )
    outcome = cli("fleet", "doctor", file, "--json")
    assert outcome.exit_code == 1
    problems = {row["label"]: row["problem"] for row in outcome.json["hosts"]}
    assert problems["well"] is None
    assert "host key is unknown or has changed" in problems["changed"]
    assert "there is no edgedec" in problems["bare"]
    assert "EDGEDEC_ISA names an instruction set" in problems["odd"]
    assert changed.n_commands == 0
    table = cli("fleet", "doctor", file)
    assert "| ready" in table.out
    assert "Linux" in next(line for line in table.out.splitlines() if line.startswith("| bare"))


def test_doctor_tries_the_packages_of_the_worker(
    cli: Any, make_board: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['tlz'] = None\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = cli("fleet", "doctor", fleet_file(tmp_path, make_board("bare").table()), "--json")
    assert outcome.exit_code == 1
    (row,) = outcome.json["hosts"]
    assert row["problem"].startswith("its Python lacks tlz of the extra `fleet`: run")


def test_a_host_that_cannot_work_costs_its_own_tasks_alone(
    cli: Any, make_board: Any, small_bundle: Path, data: Path, tmp_path: Path
) -> None:
    well, odd = make_board("well"), make_board("odd")
    file = fleet_file(
        tmp_path, well.table(), odd.table() + 'environment = {EDGEDEC_ISA = "imaginary"}\n'
    )
    outcome = cli("fleet", "eval", file, small_bundle, "--task", "human_eval", "--data", data,
                  "-n", 4, "--limit", 2, "-o", tmp_path / "found", "--json")  # fmt: skip
    assert outcome.exit_code == 0, outcome.err
    hosts = {row["label"]: row for row in outcome.json["hosts"]}
    assert hosts["well"]["n_samples"] == 2
    assert "EDGEDEC_ISA names an instruction set" in hosts["odd"]["lost"]


def test_two_fleets_on_one_board(cli: Any, make_board: Any, tmp_path: Path) -> None:
    board = make_board("one")
    board.folder.mkdir()
    file = fleet_file(tmp_path, board.table())
    other = subprocess.Popen(
        [sys.executable, "-m", "edgedec.apps.fleet.worker"],
        cwd=board.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    start = {"run": "another", "is_forced": False, "environment": {}, "cores": []}
    other.stdin.write(json.dumps(start) + "\n")
    other.stdin.flush()
    assert "hello" in json.loads(other.stdout.readline())
    refused = cli("fleet", "doctor", file, "--json")
    assert "another fleet has used it since" in refused.json["hosts"][0]["problem"]
    assert cli("fleet", "doctor", file, "--force", "--json").exit_code == 0
    assert other.poll() is None  # it was left alone
    other.stdin.close()
    assert other.wait(60) == 0  # and ends with its fleet
    assert cli("fleet", "doctor", file, "--json").exit_code == 0


def test_a_worker_ends_when_it_is_reported_to(make_board: Any, tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "edgedec.apps.fleet.worker"],
        cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write('{"run": "r", "is_forced": false, "environment": {}, "cores": []}\n')
    worker.stdin.flush()
    worker.stdout.readline()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 143


def test_the_file_of_a_test_is_read(make_board: Any, tmp_path: Path) -> None:
    board = make_board("one")
    (host,) = read_fleet(fleet_file(tmp_path, board.table())).hosts
    assert (host.user, host.host, host.port) == ("tester", "127.0.0.1", board.port)


def test_a_dask_cluster_is_a_fleet(
    cli: Any, small_bundle: Path, data: Path, tmp_path: Path
) -> None:
    options = ["--task", "human_eval", "--data", data, "-n", 8, "--limit", 3, "--method", "plain"]
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        file = fleet_file(tmp_path, f'scheduler = "{cluster.scheduler_address}"\n')
        shared = cli("fleet", "eval", file, small_bundle, *options, "-o", tmp_path / "found")
        assert shared.exit_code == 0, shared.err
        assert cluster.scheduler_address not in (tmp_path / "found/result.json").read_text()
    alone = cli("eval", small_bundle, *options, "-o", tmp_path / "alone.jsonl")
    assert alone.exit_code == 0, alone.err
    assert answers(tmp_path / "found/samples.jsonl") == answers(tmp_path / "alone.jsonl")
    gone = cli("fleet", "eval", file, small_bundle, *options, "-o", tmp_path / "n", "--wait", 1)
    assert "no Dask scheduler answers" in gone.error


def test_ci_fails_when_a_host_becomes_slower(
    make_board: Any, small_bundle: Path, tmp_path: Path
) -> None:
    board = make_board("one")
    history = tmp_path / "history"
    script = Path(__file__).parents[3] / "tools/fleet/watch.sh"
    command = [script, fleet_file(tmp_path, board.table()), small_bundle, history]
    short = ["-p", "0", "-n", "0", "-m", "1", "-r", "1", "--allow-noise"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def watch(low: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, low, *short], capture_output=True, text=True,
            env={**os.environ, "PATH": path},
        )  # fmt: skip

    first = watch("0.95")
    assert first.returncode == 0, first.stderr
    (kept,) = history.glob("*-one.json")
    document = json.loads(kept.read_text())
    document["created"] = "2020-01-01T00:00:00Z"
    for quantity in document["quantities"]:
        factor = 1e-3 if quantity["is_lower_better"] else 1e3
        quantity["values"] = [factor * value for value in quantity["values"]]
    kept.write_text(json.dumps(document))  # once it was a thousand times faster
    slower = watch("0.95")
    assert slower.returncode == 1
    assert "out of the band" in slower.stderr
    assert len(list(history.glob("*-one.json"))) == 2
    assert watch("0.000001").returncode == 0


def test_hosts_answer_one_problem_at_a_time(
    cli: Any, small_bundle: Path, data: Path, tmp_path: Path
) -> None:
    command = ["fleet", "eval", tmp_path / "fleet.toml", small_bundle, *asked(data)]
    refused = cli(*command, "-o", tmp_path / "found", "--parallel", 2)
    assert refused.exit_code == 1
    assert "leave out --parallel" in refused.err
