"""Prints what building and checking a release needs: the extra `release` of pyproject.toml."""

import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
project = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]
print("\n".join(project["optional-dependencies"]["release"]))
