"""What the pages tell people to type does what they say.

Every page runs in a folder that holds SmolLM2's bundle (the README exports it itself), the examples
and the tools. Where no word depends on what the model says, a small model takes its place.
The blocks of a page are

- ``sh``: each command must succeed and print something. ``make`` and ``pytest`` are not run again,
  from inside themselves: their rules and files must exist.
- ``console``: each command after ``$ `` must print the lines that follow it, where ``...`` stands
  for anything, and fail if and only if they tell of an error.
- ``python``: all of a page are one program, which runs after the commands.
"""

from __future__ import annotations

import doctest
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

_BLOCK = re.compile(r"^```(sh|console|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MATCHER = doctest.OutputChecker()
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
NAME = "smollm2-135m-instruct"
_NEEDED = {"desktop.md": "PySide6.QtWidgets", "type.md": "dbus_fast"}
_SMALL = {
    "bench.md", "board.md", "compare.md", "devices.md", "draft-models.md", "eagle-heads.md",
    "evaluate.md", "export.md", "heads.md", "sampling.md",
}  # fmt: skip
_MAIN = """
import sys
from edgedec.apps.cli import main
if sys.argv[1:2] == ["bench"]:  # no page says how fast anything is
    from itertools import repeat
    from edgedec.apps.bench import command, jobs, typing_job
    command._SETTLE_S, jobs._LIMIT_S, jobs._VERIFY_S = 0.0, 0.002, 0.002
    jobs.read_buffer_bytes = lambda: 1 << 24
    typing_job.key_times = lambda n, seed: repeat(0.02, n)
main()
"""
_NOT_RUN = re.compile(r"make |python -m pytest ")

pytestmark = pytest.mark.e2e


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns language and content of a page's blocks, in their order."""
    return _BLOCK.findall(page.read_text(encoding="utf-8"))


def commands(page: Path) -> Iterator[tuple[str, str | None]]:
    """Yields each command of a page, with what it must print if the page says so."""
    for language, content in blocks(page):
        joined = content.replace("\\\n", "")
        if language == "sh":
            yield from ((line, None) for line in joined.splitlines() if line.strip())
        elif language == "console":
            for part in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `edgedec` and `python` as this test's interpreter knows them."""
    found = tmp_path_factory.mktemp("bin")
    (found / "main.py").write_text(_MAIN)
    lines = {
        "python": f'"{sys.executable}"',
        "edgedec": f'"{sys.executable}" "{found / "main.py"}"',
    }
    for name, line in lines.items():
        (found / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (found / name).chmod(0o755)
    return found


@pytest.fixture
def model(page: Path, smollm2_gguf: Path, small_model: Path) -> Path:
    """What a page exports."""
    return small_model if page.name in _SMALL else smollm2_gguf


@pytest.fixture
def folder(page: Path, tmp_path: Path, smollm2_bundle: Path, small_bundle: Path) -> Path:
    """Where a page's commands run. The bundle is the page's own, for tuning writes into it."""
    bundle = small_bundle if page.name in _SMALL else smollm2_bundle
    shutil.copytree(bundle, tmp_path / "smollm2.edgedec", copy_function=os.link)
    for name in ("examples", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_page(page: Path, folder: Path, programs: Path, model: Path, tmp_path_factory: Any) -> None:
    if page.name in _NEEDED:
        pytest.importorskip(_NEEDED[page.name], exc_type=ImportError)
    cache = tmp_path_factory.mktemp("cache")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    run = partial(
        subprocess.run,
        cwd=folder,
        env={
            **os.environ,
            "XDG_CACHE_HOME": str(cache),
            "PATH": path,
            "COLUMNS": "100",
            "NO_COLOR": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if page.name == "README.md":
        shutil.rmtree(folder / "smollm2.edgedec")
    for command, output in commands(page):
        if _NOT_RUN.match(command):
            continue
        # Where a name stands for a bundle, its own is made of the installed package.
        is_name_replaced = "edgedec export" in command
        shell = command.replace(NAME, str(model)) if is_name_replaced else command
        done = run(["bash", "-c", shell])
        if output is None:
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            assert done.stdout.strip(), command
        else:
            got = done.stdout + done.stderr
            assert _MATCHER.check_output(output, got, _FLAGS), f"{command}\n{got}"
            assert (done.returncode != 0) == ("error: " in output), command
    program = "\n".join(content for language, content in blocks(page) if language == "python")
    if program:
        done = run([sys.executable, "-c", program])
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def unknown_names(page: Path) -> Iterator[str]:
    """Yields the rules of make and the tests that a page's commands name and that are not there."""
    for command, _ in commands(page):
        if command.startswith("make"):
            for rule in re.findall(r"[a-z-]+", command.partition("#")[0])[1:]:
                if not re.search(rf"^{rule}:", MAKEFILE, re.MULTILINE):
                    yield f"{page.name}: make {rule}"
        elif command.startswith("python -m pytest"):
            for path in re.findall(r"\btests/[\w./]+", command):
                if not (ROOT / path).exists():
                    yield f"{page.name}: {path}"


def test_make_and_pytest_find_what_pages_name() -> None:
    unknown = [name for page in PAGES for name in unknown_names(page)]
    assert not unknown, "\n".join(unknown)


def test_options_named_in_the_text_exist() -> None:
    folders = (ROOT / name for name in ("apps", "training", "tools"))
    programs = [path for folder in folders for path in folder.rglob("*.py")]
    sources = "".join(path.read_text(encoding="utf-8") for path in programs)
    unknown = []
    for page in PAGES:
        for option in set(re.findall(r"`(--[a-z-]+)", page.read_text(encoding="utf-8"))):
            name = option.removeprefix("--").replace("-", "_")
            if option not in sources and not re.search(rf"\b{name}:", sources):
                unknown.append(f"{page.name}: {option}")
    assert not unknown, "\n".join(unknown)


def test_the_readme_begins_with_the_two_commands() -> None:
    language, content = blocks(ROOT / "README.md")[0]
    assert language == "sh"
    assert re.findall(r"^make (\w+)", content, re.MULTILINE) == ["run", "test"]
