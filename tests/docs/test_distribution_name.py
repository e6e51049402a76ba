"""No text of ours installs a stranger's package: indexes know another project as `edgedec`."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from edgedec.models.installation import install_command, installed_distribution

ROOT = Path(__file__).parents[2]
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["name"]

_INSTALLS = re.compile(
    r"""\b(?:pipx?|uvx?|conda|mamba|poetry|pdm|rye)\b[^\n]*?   # what fetches packages
        (?:\binstall|\badd|\bdownload|--from|--with|\buvx)\b[^\n]*?
        (?<![\w./-])edgedec(?![\w./-])
        |\buvx\s+edgedec(?![\w./-])""",
    re.VERBOSE,
)
"""A line that installs `edgedec` by that name; files and folders called so are something else."""

_OF_A_WHEEL = re.compile(r"--from\s+\S*\.whl\s+edgedec\b")
"""The command of a distribution that is named by its file."""

_EXTRA = re.compile(r"(?<![\w-])edgedec\\*\[")


def strangers(text: str) -> list[str]:
    def is_strangers(line: str) -> bool:
        return bool(_INSTALLS.search(_OF_A_WHEEL.sub("", line)) or _EXTRA.search(line))

    return [line for line in text.splitlines() if is_strangers(line)]


@pytest.mark.parametrize(
    "line",
    [
        "pip install edgedec",
        "run: pip install 'edgedec[lsp]'",
        "pip install --no-deps edgedec tokenizers",
        "python -m pip install -U edgedec",
        "needs torch, or edgedec[train]",
        "uv tool install edgedec",
        "uvx --from edgedec edgedec run",
        "pipx install edgedec==0.4",
        "uv add edgedec",
        "uvx edgedec run",
    ],
)
def test_a_stranger_is_noticed(line: str) -> None:
    assert strangers(line) == [line]


@pytest.mark.parametrize(
    "line",
    [
        f"pip install '{OURS}[lsp]'",
        "pip install ./edgedec_runtime-0.1.0-py3-none-any.whl",
        "uvx --from ./edgedec_runtime.whl edgedec run smollm2-135m-instruct",
        "pip install '.[lsp]'  # installs edgedec-runtime",
        "edgedec run smollm2.edgedec",
    ],
)
def test_our_own_name_is_let_through(line: str) -> None:
    assert not strangers(line)


def test_no_file_names_a_stranger() -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this is no git checkout, so there is no list of its files")
    names = [name for name in done.stdout.decode().split("\0") if name]
    texts = [ROOT / name for name in names if ROOT / name != Path(__file__)]
    found = []
    for path in texts:
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        found += [f"{path.relative_to(ROOT)}: {line.strip()}" for line in strangers(text)]
    assert len(texts) > 100
    assert found == []


def test_messages_read_the_name_from_the_installed_metadata() -> None:
    distribution = installed_distribution()
    assert distribution is not None
    assert distribution.metadata["Name"] == OURS
    assert install_command("lsp") == f"pip install '{OURS}[lsp]'"
