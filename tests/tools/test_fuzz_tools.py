"""The tools in `tools/fuzz`, each for some seconds; they are run for long by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).parents[2] / "tools/fuzz"

pytestmark = [pytest.mark.robustness, pytest.mark.slow]


@pytest.fixture(scope="module")
def tools() -> Iterator[Any]:
    """The modules of the tools."""
    pytest.importorskip("gguf", reason="needs the dev extra")
    sys.path.insert(0, str(FUZZ))
    import cancels
    import engine_states
    import engine_threads
    import kernel_shapes
    import kills
    import pieces
    import wrong_nodes

    modules = (cancels, engine_states, engine_threads, kernel_shapes, kills, pieces, wrong_nodes)
    yield {module.__name__: module for module in modules}
    sys.path.remove(str(FUZZ))


def test_engine_states(tools: Any) -> None:
    tools["engine_states"].run_sequences(0, 8)


def test_engine_threads(tools: Any) -> None:
    for number in range(4):
        tools["engine_threads"].ask_at_once(number)


def test_server_requests(tools: Any) -> None:
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    import server_requests

    try:
        server_requests.ask_some(0, 80)
    finally:
        server_requests.server().end()


def test_cancels(tools: Any) -> None:
    tools["cancels"].cancel_some(0, 10)


@pytest.mark.parametrize("number", range(4))
def test_kills(tools: Any, number: int) -> None:
    tools["kills"].kill_one(number)


@pytest.mark.kernel
def test_kernel_shapes(tools: Any) -> None:
    for number in range(24):
        tools["kernel_shapes"].try_one(number)


@pytest.mark.kernel
def test_wrong_nodes(tools: Any) -> None:
    were_refused = [tools["wrong_nodes"].try_one(number) for number in range(60)]
    assert 10 < sum(were_refused) < 50


@pytest.mark.parametrize(
    ("tool", "n"), [("wrong_bundles", 10), ("command_lines", 8), ("editor_messages", 10)]
)
def test_tools_that_make_bundles(tool: str, n: int) -> None:
    """In a process that has run no model: those that use the bundles are forked from it."""
    code = f"from {tool} import check_some; check_some(0, {n})"
    done = subprocess.run([sys.executable, "-c", code], cwd=FUZZ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_pieces_go_on_where_they_stopped(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, seen = tools["pieces"], []
    monkeypatch.setattr(pieces, "ROOT", tmp_path)

    def piece(n_done: int) -> int:
        seen.append(n_done)
        return 4

    assert pieces.run_pieces("x", 10, 0, piece) == pieces.NOT_YET
    assert pieces.run_pieces("x", 10, 60, piece) == 0
    assert pieces.run_pieces("x", 14, 60, piece) == 0
    assert seen == [0, 4, 8, 12]
