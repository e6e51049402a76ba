"""The maker of chat prompts, on made-up texts."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "chat_prompts.py"
KITE = (
    " The red kite ( Milvus milvus ) is a medium @-@ large bird of prey . It was seen by 1 @,@ 200 "
    "people , who all wrote that down ."
)
WOODS = (
    " Kites live where woods and meadows change , and where nobody hunts them . "
    + 3 * "So it is . "
)
UNKNOWN = " Of <unk> nobody knows what it was , and so nothing is asked about it . " + 5 * "Ever . "
ARTICLES = f"\n = Red Kite =\n\n{KITE}\n\n = = Habitat = =\n\n{WOODS}\n{UNKNOWN}\n"
CODE = '''
def clamp(x: float, low: float, high: float = 1.0) -> float:
    """Return x, or the bound that is nearest to it.

    Bounds are what is allowed."""
    return min(max(x, low), high)


def bare(x):
    return x


def __getattr__(name):
    """Return what nobody should be asked to write, however long its docstring may be."""
'''


def make(folder: Path, *options: str) -> list[dict[str, str]]:
    (folder / "code" / "tests").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "clamp.py").write_text(CODE)
    (folder / "code" / "broken.py").write_text("def (:\n")
    (folder / "code" / "tests" / "more.py").write_text(CODE.replace("clamp", "other"))
    (folder / "wiki.txt").write_text(ARTICLES)
    (folder / "sums.jsonl").write_text(
        "".join(json.dumps({"question": f"What is {i} + 1?"}) + "\n" for i in range(50))
    )
    (folder / "german.txt").write_text("Die Gabelweihe kreist.\n\nSo ist das.\n")
    output = folder / "prompts.jsonl"
    command = [sys.executable, str(SCRIPT), str(output), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return [json.loads(line) for line in output.read_text().splitlines()]


def sources(folder: Path) -> list[str]:
    names = {
        "--articles": "wiki.txt",
        "--problems": "sums.jsonl",
        "--code": "code",
        "--foreign": "german.txt",
    }
    return [part for option, name in names.items() for part in (option, str(folder / name))]


def test_prompts_are_of_all_kinds_and_of_what_the_texts_say(tmp_path: Path) -> None:
    found = make(tmp_path, *sources(tmp_path), "--count", "100")
    by_kind = Counter(prompt["category"] for prompt in found)
    assert by_kind["problem"] == 11
    assert by_kind["code"] == 1
    assert by_kind["translation"] == 2
    others = {"title", "writing", "summary", "passage", "json"}
    assert set(by_kind) == {"problem", "code", "translation", *others}
    texts = [prompt["prompt"] for prompt in found]
    (code,) = (text for text in texts if text.startswith("def "))
    assert code == (
        "def clamp(x: float, low: float, high: float=1.0):\n"
        '    """Return x, or the bound that is nearest to it.\n'
        '    \n    Bounds are what is allowed.\n    """'
    )
    assert all("<unk>" not in text for text in texts)
    whole = "\n".join(texts)
    assert "The red kite (Milvus milvus) is a medium-large bird" in whole
    assert "Red Kite" in whole
    assert "Translate German to English: So ist das." in texts
    assert len(set(texts)) == len(texts)


def test_programs_have_places_to_fill_in_and_parts_to_explain(tmp_path: Path) -> None:
    source = "".join(f"let value_{i} = compute({i}, {i + 1});\n" for i in range(200))
    for name in ("lib/a.js", "lib/b.zig", "lib/c.txt", "lib/tests/d.js"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    (tmp_path / "lib/min.js").write_text(source.replace("\n", " "))
    (tmp_path / "lib/short.js").write_text(source[:200])
    lib = str(tmp_path / "lib")
    options = "--fill", lib, "--programs", lib, "--letters", "600"
    made = [one for seed in "0123" for one in make(tmp_path, *options, "--seed", seed)]
    fill = [one for one in made if one["category"] == "fill"]
    programs = [one["prompt"] for one in made if one["category"] == "program"]
    assert fill
    for one in fill:
        before, after = one["prompt"], one["suffix"]
        assert len(before) + len(after) <= 600
        start = source.index(before)
        # What is missing ends with a line, four at most, and is not what stands behind it.
        missing = source[start + len(before) : source.index(after, start) if after else None]
        assert missing
        assert missing.count("\n") <= 4
    assert any(not one["prompt"].endswith("\n") for one in fill)
    assert programs
    assert all("value_" in prompt for prompt in programs)
    assert any("Zig" in prompt for prompt in programs)


@pytest.mark.slow
def test_tasks_are_functions_to_write_with_examples(tmp_path: Path) -> None:
    task = {
        "text": "Write a python function to double a number.",
        "code": "def double(n):\r\n  return 2 * n\r\n",
        "test_list": ["assert double(1) == 2", "assert double(-3) == -6", "double(4)"],
    }
    others = [{"code": "def (:"}, {"code": "def single(n): ..."}, {"test_list": ["double(4)"]}]
    tasks = [task] * 2 + [task | other for other in others]
    (tmp_path / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    option = "--tasks", str(tmp_path / "tasks.jsonl")
    made = [make(tmp_path, *option, "--seed", str(seed)) for seed in range(20)]
    texts = {prompt["prompt"] for found in made for prompt in found}
    assert {prompt["category"] for found in made for prompt in found} == {"task"}
    assert all(text.startswith("def double(n):\n") for text in texts)
    assert all("Double a number.\n" in text for text in texts)
    assert 'def double(n):\n    """ Double a number.\n    >>> double(1)\n    2\n    """\n' in texts
    assert any("double(-3) => -6" in text for text in texts)


def test_the_same_seed_makes_the_same_prompts(tmp_path: Path) -> None:
    made = [make(tmp_path, *sources(tmp_path), "--count", "40", "--seed", seed) for seed in "001"]
    assert made[0] == made[1]
    assert made[0] != made[2]


def test_any_source_will_do_and_none_is_refused(tmp_path: Path) -> None:
    make(tmp_path, *sources(tmp_path))
    only = make(tmp_path, "--problems", str(tmp_path / "sums.jsonl"), "--count", "20")
    assert len(only) == 20
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path / "none.jsonl")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no texts to make prompts of" in done.stderr
    assert not (tmp_path / "none.jsonl").exists()
