"""The examples of several servers behind a balancer."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SERVING = Path(__file__).parents[2] / "tools/serving"

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def found(program: str) -> str:
    """Returns where a program is; skips the test where it is not installed."""
    path = shutil.which(program, path="/usr/sbin:/usr/bin:/usr/local/bin")
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


@pytest.mark.parametrize("balancer", ["haproxy", "nginx"])
def test_no_request_is_lost_but_those_of_the_killed_server(
    smollm2_bundle: Path, balancer: str
) -> None:
    found(balancer)
    pytest.importorskip("uvicorn", reason="needs the extra serve")
    command = [sys.executable, "kill_one.py", str(smollm2_bundle), "--balancer", balancer]
    done = subprocess.run(
        [*command, "--requests", "48"], cwd=SERVING, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_request_that_another_server_lost_is_a_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = importlib.util.spec_from_file_location("kill_one", SERVING / "kill_one.py")
    assert spec is not None
    assert spec.loader is not None
    tool = sys.modules["kill_one"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    outcomes = [tool.Outcome(0, "a", 1.0, None), tool.Outcome(1, "a", 9.0, "text")]
    kill, wanted = tool.Kill(port=81, at_s=5.0, n_open=1), {"a": "text"}
    assert tool.judge(outcomes, kill, {0: 81, 1: 82}, wanted) == 0
    for served in ({0: 82, 1: 82}, {1: 82}):  # of the other server, and of nobody knows which
        assert tool.judge(outcomes, kill, served, wanted) == 1
        assert "lost: 1, of another server: 1" in capsys.readouterr().out


def test_the_unit_is_one(tmp_path: Path) -> None:
    text = (
        (SERVING / "edgedec.service").read_text().replace("/opt/edgedec/bin/edgedec", "/bin/true")
    )
    unit = tmp_path / "edgedec.service"
    unit.write_text(text)
    done = subprocess.run(
        [found("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
