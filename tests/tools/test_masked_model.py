"""The tool that trains a tiny masked-diffusion model, for a moment."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from edgedec import EngineOptions, load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

pytest.importorskip("torch", reason="needs the dev extra")
pytest.importorskip("transformers", reason="needs the dev extra")

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parents[2] / "tools" / "masked_model.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("masked_model", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_train_and_measure(tool: ModuleType, tmp_path: Path) -> None:
    folder, bundle = tmp_path / "tiny", tmp_path / "tiny.edgedec"
    command = [sys.executable, str(SCRIPT)]
    subprocess.run([*command, "train", str(folder), "--minutes", "0.01"], check=True)
    export(ExportConfig(str(folder), bundle, device_target="portable"))
    rules = ("confidence", "confidence:steps=4")
    asked = [*command, "measure", str(bundle), "--problems", "2", "--rules", *rules]
    done = subprocess.run(asked, check=True, capture_output=True, text=True)
    head, _, plain, fast = done.stdout.splitlines()
    assert head == "| rule | right | same text | passes | rows | time (ms) |"
    cells = [cell.strip() for cell in plain.split("|")[1:-1]]
    assert (cells[0], cells[2], cells[3]) == ("`confidence`", "100.0%", f"{tool.N_NEW}.0")
    assert fast.split("|")[4].strip() == "4.0"
    with load(bundle, EngineOptions(threads=1)) as engine:
        assert engine.encode("next kdba:") == tool.ids_of("next kdba:")
        assert engine.tokenizer.decode(tool.ids_of("a bd")) == "a bd"


def test_answers_are_right_and_fit(tool: ModuleType) -> None:
    assert tool.answers_to("reverse", "kdbz") == ["zbdk"]
    assert tool.answers_to("next", "kdbz") == ["leca"]
    assert tool.answers_to("turn", "kdb") == ["kdb", "dbk", "bkd"]
    rng = random.Random(3)
    kinds = set()
    for _ in range(300):
        question, answers = tool.problem(rng)
        kinds.add(question.split()[0])
        assert max(map(len, answers)) < tool.N_NEW
        assert len(question) + tool.N_NEW <= tool.SIZES["max_sequence_length"]
    assert kinds == {"reverse", "next", "turn"}
