"""A short run imports and starts no more than it needs: what it does not do cannot delay it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAX_FILES = {"plain": 110, "auto": 143}
"""That a run imports below apps. What other requests need is imported when they ask for it."""

REPORT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
"""


def modules_after(code: str, *arguments: object) -> set[str]:
    """Returns what a process has imported that runs ``code``."""
    done = subprocess.run(
        [sys.executable, "-c", REPORT + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_the_front_door_is_light() -> None:
    modules = modules_after("import edgedec; edgedec.ConfigError")
    assert "edgedec.models.errors" in modules
    assert sorted(modules & {"numpy", "onnxruntime", "edgedec.runtime"}) == []
    assert modules_after("import edgedec; edgedec.load") >= {
        "numpy",
        "edgedec.runtime.engine.engine",
    }


@pytest.mark.e2e
def test_a_short_run(smollm2_bundle: Path) -> None:
    modules = modules_after(
        "from edgedec.apps.cli import main; main()",
        "run", smollm2_bundle, "Why is the sky blue?", "-n", 1,
    )  # fmt: skip
    assert modules >= {"edgedec.apps.run.command", "edgedec.targets.cpu.run_fused", "jinja2"}
    unneeded = {
        "rich", "pydantic", "importlib.metadata", "statistics", "torch", "transformers", "onnx",
        "llguidance", "matplotlib", "edgedec.export", "edgedec.runtime.sequences.session_file",
        "edgedec.runtime.decoding.switching.switching",
        "edgedec.runtime.drafting.drafters.draft.draft_model",
    }  # fmt: skip
    assert sorted(modules & unneeded) == []


@pytest.mark.e2e
@pytest.mark.parametrize("method", MAX_FILES)
def test_a_run_imports_few_files(smollm2_bundle: Path, method: str) -> None:
    modules = modules_after(
        "from edgedec.apps.cli import main; main()",
        "run", smollm2_bundle, "Why is the sky blue?", "-n", 1, "--method", method,
    )  # fmt: skip
    assert [name for name in modules if name.startswith("edgedec.runtime.search")] == []
    files = files_below_apps(modules)
    assert len(files) <= MAX_FILES[method], f"{len(files)} files: {' '.join(sorted(files))}"


def files_below_apps(modules: set[str]) -> set[str]:
    """Returns the modules that are files of ours, other than those of apps."""
    ours = {name.removeprefix("edgedec.") for name in modules if name.startswith("edgedec.")}
    return {
        name
        for name in ours
        if not name.startswith("apps.") and (ROOT / f"{name.replace('.', '/')}.py").is_file()
    }


@pytest.mark.e2e
def test_nothing_is_reported_to_anyone(smollm2_bundle: Path, tmp_path: Path) -> None:
    silencers = ("CI", "ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS")
    environment = {name: value for name, value in os.environ.items() if name not in silencers}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    code = """
import sys, edgedec
with edgedec.load(sys.argv[1]) as engine:
    engine.generate("Why is the sky blue?", edgedec.GenerationConfig(max_new_tokens=4))
"""
    subprocess.run([sys.executable, "-c", code, smollm2_bundle], env=environment, check=True)
    # ONNX Runtime keeps what it is going to report, and an id of the device, in such files.
    found = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert [name for name in found if not name.endswith(".json")] == []
