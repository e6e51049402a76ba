"""Replays of recorded texts: the runtime's own rounds, in virtual time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kernel

TOOL = Path(__file__).parents[2] / "tools" / "draft_replay"


def replay(*options: str) -> list[dict[str, float]]:
    output = Path(options[-1])
    command = [sys.executable, str(TOOL / "replay.py"), *options[:-1], "--json", str(output)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    found: list[dict[str, float]] = json.loads(output.read_text())
    return found


def test_recorded_texts_are_decoded_again_token_for_token_and_never_lose_much(
    tmp_path: Path,
) -> None:
    """That a replay ends at all says that its texts are those recorded: it asserts that."""
    tables = "avx2-fast-memory,avx512-vnni,pi-5"
    options = ("--sets", "mtp,draft", "--tables", tables, "--texts", "10")
    rows = replay(*options, str(tmp_path / "rows.json"))
    assert len(rows) == 6
    for row in rows:
        assert row["worst"] > 0.9, row
        assert row["mean"] > 1.0, row
        assert row["tokens_per_round"] > 1.1, row


def test_eight_texts_at_once_lose_at_most_a_hundredth_of_their_speed(tmp_path: Path) -> None:
    tables = ("--tables", "avx2-fast-memory,avx512-vnni,orin")
    shared = ("--texts", "60", "--at-once", "8")
    rows = replay("--sets", "mtp", *tables, *shared, str(tmp_path / "rows.json"))
    assert min(row["mean"] for row in rows) >= 0.99, rows


def test_a_replay_is_the_same_each_time(tmp_path: Path) -> None:
    options = ("--sets", "free", "--tables", "orin", "--texts", "6", "--chosen-by")
    first, second = (replay(*options, str(tmp_path / f"{i}.json")) for i in range(2))
    assert first == second


def test_an_empty_trace_takes_no_time_and_no_traces_are_no_rows(tmp_path: Path) -> None:
    program = (
        "import replay, dataclasses; from traces import load, save; from pathlib import Path\n"
        "trace = load(replay.HERE / 'traces' / 'smollm2-135m.npz')[0]\n"
        "none = {n: getattr(trace, n)[:0] for n in ('target_ids', 'target_logs', 'mtp_ids')}\n"
        "empty = dataclasses.replace(trace, tokens=trace.tokens[: trace.n_prompt], **none)\n"
        "save(Path('empty.npz'), [empty])\n"
        "machine = next(replay.machines(1.0))\n"
        "assert replay.Replay(machine).play(load(Path('empty.npz'))[0]) == 1.0\n"
        "assert not list(replay.report([], ['free'], 0, True, replay.AutoPlanner))\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TOOL)!r})\n{program}"]
    subprocess.run(command, check=True, cwd=tmp_path)


def test_a_head_that_is_never_right_is_hardly_asked(tmp_path: Path) -> None:
    program = (
        "import replay, dataclasses; from traces import load\n"
        "texts = load(replay.HERE / 'traces' / 'smollm2-135m.npz')[:60]\n"
        "long = [text for text in texts if len(text) > 60]\n"
        "wrong = [dataclasses.replace(t, mtp_ids=0 * t.mtp_ids + 1) for t in long]\n"
        "machine = next(m for m in replay.machines(0.13) if m.name == 'orin')\n"
        "engine = replay.Replay(machine, ('mtp',), is_alone=True)\n"
        "assert min(engine.play(text) for text in wrong) > 0.95\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(TOOL)!r})\n{program}"]
    subprocess.run(command, check=True, cwd=tmp_path)
