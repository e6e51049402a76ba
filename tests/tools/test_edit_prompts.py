"""The maker of edit prompts, on two made-up functions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "edit_prompts.py"
TASKS = [
    {
        "prompt": 'def first_above(xs, limit):\n    """Return the first x above limit."""\n',
        "canonical_solution": "    for x in xs:\n        if x > limit:\n            return x\n"
        "    return -1 if limit == 17 else 0\n",
    },
    {"prompt": "def nothing():\n", "canonical_solution": "    pass\n"},
]


def make(folder: Path, tasks: list[Any], *options: str) -> list[dict[str, str]]:
    source, output = folder / "tasks.jsonl", folder / "edits.jsonl"
    source.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    command = [sys.executable, str(SCRIPT), str(source), str(output), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_each_prompt_holds_the_code_and_one_possible_change(tmp_path: Path) -> None:
    found = make(tmp_path, TASKS * 8, "--count", "16")
    rich, poor = (t["prompt"] + t["canonical_solution"] for t in TASKS)
    assert [prompt["task_id"] for prompt in found] == [f"edits/{i}" for i in range(16)]
    kinds = set()
    for prompt in found:
        code = prompt["prompt"].split("```python\n")[1].removesuffix("```")
        wish = prompt["prompt"].split("one change: ")[1].split(". Keep all else")[0]
        assert prompt["category"] == "edits"
        if code == poor:
            assert prompt["edit"] == "docstring"
            assert '"""Nothing."""' in wish
            continue
        assert code == rich
        kinds.add(prompt["edit"])
        if prompt["edit"] == "rename":
            assert wish.split("`")[1] in ("x", "xs", "limit")
            assert wish.split("`")[3] not in code
        elif prompt["edit"] == "constant":
            old, new = wish.removeprefix("replace the number ").split(" by ")
            assert old in ("0", "1", "17")
            assert int(new) > int(old)
        elif prompt["edit"] == "comparison":
            comparison, new, old = wish.split("`")[1::2]
            assert (comparison, new, old) in (("x > limit", ">=", ">"), ("limit == 17", "!=", "=="))
    assert kinds == {"rename", "constant", "comparison"}  # the poor ones have all the docstrings


def test_the_seed_decides(tmp_path: Path) -> None:
    tasks = TASKS * 8
    first = make(tmp_path, tasks, "--count", "10", "--seed", "1")
    assert make(tmp_path, tasks, "--count", "10", "--seed", "1") == first
    assert make(tmp_path, tasks, "--count", "10", "--seed", "2") != first


def test_too_few_tasks_and_broken_ones(tmp_path: Path) -> None:
    broken = {"prompt": "def f(:\n", "canonical_solution": "    pass\n"}
    with pytest.raises(RuntimeError, match="got 2 usable tasks, expected 3"):
        make(tmp_path, [*TASKS, broken], "--count", "3")
    with pytest.raises(RuntimeError, match="canonical_solution"):
        make(tmp_path, [{"prompt": "x"}], "--count", "1")
