"""A short run imports and starts no more than it needs: what it does not do cannot delay it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert modules_after("import edgedec; edgedec.load") >= {"numpy", "edgedec.runtime.engine"}


@pytest.mark.e2e
def test_a_short_run(smollm2_bundle: Path) -> None:
    modules = modules_after(
        "from edgedec.apps.cli import main; main()",
        "run", smollm2_bundle, "Why is the sky blue?", "-n", 1,
    )  # fmt: skip
    assert modules >= {"edgedec.apps.generate", "edgedec.runtime.backends.fused", "jinja2"}
    unneeded = {
        "rich", "pydantic", "importlib.metadata", "statistics", "torch", "transformers", "onnx",
        "llguidance", "matplotlib", "edgedec.export", "edgedec.runtime.session_file",
        "edgedec.runtime.switching.switching", "edgedec.runtime.drafters.draft_model",
    }  # fmt: skip
    assert sorted(modules & unneeded) == []
