"""`tools/head_kinds`: every kind of head is trained and measured, and again where that stopped."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

pytest.importorskip("torch", reason="needs the extra train")
pytestmark = pytest.mark.e2e

TOOL = Path(__file__).parents[2] / "tools" / "head_kinds"


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    texts = ["def add(a, b):\n", "Name three rivers.", "Why is the sky blue?"]
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return path


def test_all_kinds_are_trained_and_stay_as_they_were_measured(
    small_model: Path, prompts: Path, tmp_path: Path
) -> None:
    bundle, folder = tmp_path / "small.edgedec", tmp_path / "kinds"
    export(ExportConfig(str(small_model), bundle, context=512, hidden_layers=(2, 15)))
    command = [bundle, folder, "--prompts", prompts, "--tests", prompts, "--n-tests", "2"]
    command += ["--tokens", "600", "--minutes", "0.002"]
    first = _run("bench.py", *command)
    table = first[first.index("| kind |") :]
    kinds = re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE)
    others = {"clover", "chimera", "fspad", "falcon", "ppd", "hidden-transfer"}
    assert set(kinds) == {"hydra", "medusa", "eagle"} | others
    measured = json.loads((folder / "results.json").read_text())
    assert all(0 <= share <= 1 for of in measured.values() for share in of["by_depth"])
    assert all(1 <= tokens <= 4 for of in measured.values() for tokens in of["tokens_per_pass"])
    assert all(len(of["auto"]) == len(of["alone"]) for of in measured.values())
    assert all(0.5 < speed < 4 for of in measured.values() for speed in of["alone"])
    assert measured["ppd"]["n_bytes"] < measured["medusa"]["n_bytes"] < measured["hydra"]["n_bytes"]
    assert _run("bench.py", *command).strip() == table.strip()


def test_fewer_bits_take_less_and_cost_a_shipped_head_more(
    smollm2_gguf: Path, prompts: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "smollm2.edgedec"
    export(ExportConfig(str(smollm2_gguf), bundle))
    command = [tmp_path / "tests", bundle, "--tests", prompts, "--n-tests", "2"]
    said = _run("bits.py", *command, "--bits", "8", "4", "2")
    rows = re.findall(r"^\| (\d) \| ([\d.]+) MB \| ([\d.]+)%", said, re.MULTILINE)
    assert [int(bits) for bits, _, _ in rows] == [8, 4, 2]
    eight, four, two = (float(share) for _, _, share in rows)
    assert min(eight, four) > two + 5
    assert float(rows[0][1]) > float(rows[1][1]) > float(rows[2][1])


def _run(name: str, *arguments: str | Path) -> str:
    command = [sys.executable, str(TOOL / name), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
