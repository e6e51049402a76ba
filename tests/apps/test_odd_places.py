"""Homes that are missing or cannot be written, and paths that are long or hard to spell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ..export.conftest import make_gguf

__all__ = ["make_gguf"]  # a fixture

MAIN = "from edgedec.apps.cli import main; main()"
MODEL = "smollm2-135m-instruct"
UNWRITABLE = "/dev/null/home"
"""Not even the superuser can write below it."""

pytestmark = pytest.mark.e2e


def edgedec(*arguments: object, home: str | None) -> subprocess.CompletedProcess[str]:
    """Runs the program with another home directory, or with none for None."""
    kept = {k: v for k, v in os.environ.items() if k != "HOME" and not k.startswith("XDG_")}
    return subprocess.run(
        [sys.executable, "-c", MAIN, *map(str, arguments)],
        env=kept if home is None else {**kept, "HOME": home},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(params=["plain ascii", "spaces  and\ttabs", "Fjörd/模型/🦊", "long"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder whose path is hard to handle."""
    name = "/".join(["a" * 60] * 5) if request.param == "long" else request.param
    folder = tmp_path / name
    folder.mkdir(parents=True)
    assert request.param != "long" or len(str(folder)) > 260
    return folder


def test_bundles_are_written_and_run_anywhere(place: Path, make_gguf: Any) -> None:
    model, bundle = place / "model ü.gguf", place / "bundle 模.edgedec"
    shutil.copyfile(make_gguf("llama", "Q8_0"), model)
    made = edgedec("export", model, "-o", bundle, home=UNWRITABLE)
    assert made.returncode == 0, made.stderr
    request = ("run", bundle, "Say ü.", "-n", 4, "--session", place / "s ü.session", "--json")
    first, second = (edgedec(*request, home=UNWRITABLE) for _ in range(2))
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert json.loads(first.stdout)["n_new_tokens"] == json.loads(second.stdout)["n_new_tokens"]
    assert (place / "s ü.session").stat().st_size > 0
    assert edgedec("inspect", bundle, "--verify", home=UNWRITABLE).returncode == 0


@pytest.mark.parametrize("home", [UNWRITABLE, None])
def test_a_bundle_needs_no_home(home: str | None, smollm2_bundle: Path) -> None:
    done = edgedec("run", smollm2_bundle, "Hi", "-n", 3, "--method", "plain", home=home)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", MODEL, "Hi"), "error: cannot keep bundles in /dev/null/home/.cache/edgedec"),
        (("bench", MODEL), "error: cannot keep bundles in /dev/null/home/.cache/edgedec"),
        (("models", "list"), None),
        (("doctor",), None),
    ],
)
def test_names_without_a_home_to_write(arguments: tuple[str, ...], said: str | None) -> None:
    done = edgedec(*arguments, home=UNWRITABLE)
    assert "Traceback" not in done.stderr
    if said is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 1
        assert done.stderr.startswith(said)
        assert len(done.stderr.splitlines()) == 1
