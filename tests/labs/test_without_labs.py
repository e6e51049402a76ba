"""An installation without labs: everything else imports and runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

_WITHOUT_LABS = """
import sys
from importlib.abc import MetaPathFinder

def leave_out(finder):
    find = finder.find_spec
    def without(name, path=None, target=None):
        is_of_labs = name == "edgedec.labs" or name.startswith("edgedec.labs.")
        return None if is_of_labs else find(name, path, target)
    return without

class Others(MetaPathFinder):
    def __init__(self, finder):
        self.find_spec = leave_out(finder)

sys.meta_path = [Others(finder) for finder in sys.meta_path]
"""


def without_labs(code: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a Python that cannot find labs."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT_LABS + code], capture_output=True, text=True, check=False
    )


def edgedec(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a command line in a Python that cannot find labs."""
    return without_labs(
        f"from edgedec.apps.cli import main\nmain({[str(one) for one in arguments]!r})\n"
    )


def test_labs_are_left_out_here() -> None:
    done = without_labs("import edgedec.runtime, edgedec.labs\n")
    assert "No module named 'edgedec.labs'" in done.stderr


def test_one_file_names_them() -> None:
    """Labs register themselves; no other file of the product knows that they exist."""
    folders = ("runtime", "export", "targets", "autocomplete", "training", "widgets", "apps", "src")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    pattern = re.compile(r"edgedec\.labs|\blabs/")
    found = {str(path.relative_to(ROOT)) for path in files if pattern.search(path.read_text())}
    assert found == {"runtime/drafting/extensions.py"}


@pytest.mark.slow
def test_every_module_of_the_other_folders_imports() -> None:
    """But for what imports packages that not everybody has."""
    names = [
        ".".join(("edgedec", *path.relative_to(ROOT).with_suffix("").parts))
        for folder in ("runtime", "export", "autocomplete", "training", "apps")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path.name not in ("__init__.py", "__main__.py")
    ]
    done = without_labs(
        "import importlib\n"
        f"for name in {names!r}:\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        if (error.name or '').startswith('edgedec'):\n"
        "            print(name, error)\n"
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("method", ["plain", "auto", "lookup"])
def test_methods_run(small_bundle: Path, method: str) -> None:
    done = edgedec("run", small_bundle, "a b a b a b", "--method", method, "-n", 4, "--json")
    assert done.returncode == 0, done.stderr
    assert '"n_new_tokens": 4' in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "rapid"), "unknown method 'rapid'"),
    ],
)
def test_methods_of_labs_are_refused(
    small_bundle: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = edgedec("run", small_bundle, "a b", "-n", 4, *arguments)
    assert done.returncode == 1
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("verb", ["run", "bench", "eval", "tune", "train"])
def test_help_does_not_need_them(verb: str) -> None:
    done = edgedec(verb, "--help")
    assert (done.returncode, done.stderr) == (0, "")
