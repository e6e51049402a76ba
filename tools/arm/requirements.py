"""Prints what the emulated Python needs: edgedec's dependencies and test tools."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

TEST_TOOLS = ("hypothesis", "onnx", "pytest")


def read_project() -> dict[str, Any]:
    """Returns the table ``project`` of pyproject.toml."""
    path = Path(__file__).parents[2] / "pyproject.toml"
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return project


def requirements(project: dict[str, Any]) -> list[str]:
    """Returns the requirements of running edgedec and testing it."""
    extras = project["optional-dependencies"]
    tools = [line for line in extras["dev"] if re.split(r"[^\w-]", line)[0] in TEST_TOOLS]
    return [*project["dependencies"], *tools]


print("\n".join(requirements(read_project())))
