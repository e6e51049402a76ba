"""Prints what the emulated Python needs of pyproject.toml: edgedec's dependencies and test tools.

With ``--metadata FOLDER`` it writes instead what an installation would leave there: edgedec's
name, version and dependencies.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

TEST_TOOLS = ("hypothesis", "pytest")


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


def write_metadata(project: dict[str, Any], folder: Path) -> None:
    """Writes the METADATA file that `importlib.metadata` reads."""
    for old in folder.glob("*.dist-info/METADATA"):
        old.unlink()
    info = folder / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    lines = ["Metadata-Version: 2.1", f"Name: {project['name']}", f"Version: {project['version']}"]
    lines += [f"Requires-Dist: {line}" for line in project["dependencies"]]
    (info / "METADATA").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """Prints the requirements, or writes metadata into the folder after --metadata."""
    project = read_project()
    if sys.argv[1:2] == ["--metadata"]:
        write_metadata(project, Path(sys.argv[2]))
    else:
        print("\n".join(requirements(project)))


if __name__ == "__main__":
    main()
