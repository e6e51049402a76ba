"""Type checkers of other people see the types of an installed edgedec (PEP 561)."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PROGRAM = """
import edgedec

with edgedec.load("model.edgedec", edgedec.EngineOptions(threads=1)) as engine:
    result = engine.generate("Hi", edgedec.GenerationConfig(max_new_tokens=8))
    text: str = result.text
    wrong: int = result.text
    engine.generate("Hi", edgedec.GenerationConfig(max_new_tokens="8"))
"""


def _install_wheel(folder: Path) -> Path:
    """Builds a wheel without kernels, installs it where nothing else is; returns its Python."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-C", "wheel.cmake=false"]
    subprocess.run([*built, "-w", str(folder), str(ROOT)], check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    installed = [*pip, "--python", str(python), "install", "--no-deps", "--no-index"]
    subprocess.run([*installed, str(wheel)], check=True)
    return python


def _install_links(folder: Path) -> Path:
    """Does to a bare environment what `make run` does beside Python's own hook; returns its Python.

    The first path is one that an editable install adds itself.
    """
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv/bin/python"
    (site_packages,) = (folder / "venv/lib").glob("python*/site-packages")
    (site_packages / "_editable_edgedec.pth").write_text(f"{ROOT / 'src'}\n", encoding="utf-8")
    make = ["make", "-s", "-C", str(ROOT), f"BIN={folder / 'venv/bin'}"]
    subprocess.run([*make, "build/typing/edgedec"], check=True)
    return python


@pytest.mark.slow
@pytest.mark.parametrize("install", [_install_wheel, _install_links])
def test_a_wrong_argument_is_found_against_what_is_installed(
    tmp_path: Path, install: Callable[[Path], Path]
) -> None:
    if install is _install_links and shutil.which("make") is None:
        pytest.skip("make is not installed")
    python = install(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    options = ["--python-executable", str(python), "--cache-dir", str(tmp_path / "cache")]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", "", *options, str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line for line in checked.stdout.splitlines() if "program.py:" in line]
    assert [line.split("error: ")[1].split("  [")[0] for line in found] == [
        'Incompatible types in assignment (expression has type "str", variable has type "int")',
        'Argument "max_new_tokens" to "GenerationConfig" has incompatible type "str"; '
        'expected "int"',
    ], checked.stdout + checked.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize("goal", ["run", "check", "test", "test-fast", "docs"])
def test_links_for_type_checkers_are_made_anew_by_each_call_of_make(goal: str) -> None:
    listed = subprocess.run(
        ["make", "-n", goal], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "tools/type_links.py build/typing" in listed.stdout
