"""Prints what a foreign Python needs: edgedec's dependencies and test tools.

python requirements.py [EXTRA...]    with the packages of these extras
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

TEST_TOOLS = ("hypothesis", "onnx", "pytest")
CLIENTS = ("anthropic", "ollama", "openai")
"""What the tests of `edgedec serve` ask it with."""


def read_project() -> dict[str, Any]:
    """Returns the table ``project`` of pyproject.toml."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return project


def requirements(project: dict[str, Any], groups: list[str]) -> list[str]:
    """Returns the requirements of running edgedec with the extras ``names``, and testing it."""
    extras = project["optional-dependencies"]
    added = [line for name in groups for line in extras[name]]
    names = TEST_TOOLS + (CLIENTS if "serve" in groups else ())
    tools = [line for line in extras["dev"] if re.split(r"[^\w-]", line)[0] in names]
    return [*project["dependencies"], *added, *tools]


print("\n".join(requirements(read_project(), sys.argv[1:])))
