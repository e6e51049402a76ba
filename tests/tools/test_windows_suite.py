"""The runner of the suite on Windows' Python: what it leaves out, counts and does not run again."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIST = TESTS / "windows/left_out.toml"

PASSING = """
import pytest
def test_one(): pass
def test_two(): pytest.skip("no such thing here")
@pytest.mark.slow
def test_three(): pass
"""
FAILING = "def test_one(): assert False"
WITHOUT_A_PACKAGE = "import no_such_package"


class Project:
    """A folder with the runner, some tests and what stands for an installed wheel."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tests = root / "tests/models"
        for folder in TESTS.iterdir():
            (root / "tests" / folder.name).mkdir(parents=True)
        shutil.copyfile(TESTS / "windows/suite.py", root / "tests/windows/suite.py")
        self.wheel = root / "build/windows/package/edgedec.dist-info/RECORD"
        self.wheel.parent.mkdir(parents=True)
        self.wheel.write_text("one")
        (root / "tests/windows/left_out.toml").write_text(
            '[[left_out]]\nreason = "no POSIX"\nfiles = ["models/test_posix.py"]\n'
            "tests = ['test_two_forks']\npackages = ['no_such_package']\n"
        )

    def run(self) -> tuple[int, str]:
        """Returns the exit code and what was printed, its counts without the spaces in front."""
        done = subprocess.run(
            [sys.executable, self.root / "tests/windows/suite.py"],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.root,
        )
        return done.returncode, re.sub(r"^ +", "", done.stdout, flags=re.MULTILINE)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.slow
def test_what_ran_and_what_was_left_out_is_counted(project: Project) -> None:
    (project.tests / "test_a.py").write_text(PASSING + "def test_two_forks(): assert False\n")
    (project.tests / "test_posix.py").write_text("import no_posix")
    (project.tests / "test_b.py").write_text(WITHOUT_A_PACKAGE)
    code, said = project.run()
    assert code == 0, said
    assert "1 passed, in 2 files\n1   in models\n0 failed\n" in said
    assert "2 left out:\n1   no such thing here\n1   no POSIX\n" in said
    assert "2 whole files left out:\n2   no POSIX\n1 not asked for" in said


@pytest.mark.slow
def test_files_that_passed_are_run_again_only_after_a_change(project: Project) -> None:
    (project.tests / "test_a.py").write_text(PASSING)
    (project.tests / "test_b.py").write_text(FAILING)
    (project.tests / "test_c.py").write_text(WITHOUT_A_PACKAGE)
    code, said = project.run()
    assert code == 1
    assert "1 failed\nin models/test_b.py\n" in said
    (project.tests / "test_b.py").write_text("def test_one(): pass")
    code, said = project.run()
    assert code == 0, said
    assert "1 passed in" in said  # of this run
    assert "2 passed, in 3 files\n" in said
    assert "no tests ran" in project.run()[1]
    project.wheel.write_text("another")
    code, said = project.run()
    assert code == 0, said
    assert "2 passed, 2 skipped" in said


@pytest.mark.slow
def test_a_test_that_ends_the_program_is_not_forgotten(project: Project) -> None:
    (project.tests / "test_a.py").write_text(PASSING)
    (project.tests / "test_b.py").write_text("import os\ndef test_one(): os._exit(3)\n")
    for _ in range(2):
        assert project.run()[0] == 3
    assert '"models/test_a.py"' in (project.root / "build/windows/suite.json").read_text()


def test_the_list_names_what_there_is() -> None:
    rows = tomllib.loads(LIST.read_text(encoding="utf-8"))["left_out"]
    paths = {path.relative_to(TESTS).as_posix(): path for path in TESTS.rglob("*.py")}
    names = [
        f"tests/{name}::{test}"
        for name, path in paths.items()
        for test in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    ]
    patterns = [pattern for row in rows for pattern in row.get("tests", ())]
    assert [one for one in patterns if not any(re.search(one, name) for name in names)] == []
    files = [name for row in rows for name in row.get("files", ())]
    assert [name for name in files if not (TESTS / name).exists()] == []
