"""The extension for VS Code: what it finds and lists, and that npm builds and packs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.lsp.settings import _FOREIGN, ServerSettings
from edgedec.apps.typing.typing_memory import TypingMemory

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "editors/vscode"
MANIFEST = json.loads((FOLDER / "package.json").read_text(encoding="utf-8"))


def node(script: str) -> Any:
    """Returns the value of a script that knows the files `program` and `models`."""
    if shutil.which("node") is None:
        pytest.skip("there is no node: apt-get install nodejs")
    names = {name: json.dumps(str(FOLDER / "src" / name)) for name in ("program", "models")}
    lines = [f"const {name} = require({path});" for name, path in names.items()]
    command = ["node", "-e", "\n".join([*lines, f"console.log(JSON.stringify({script}))"])]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_settings_are_those_of_the_server() -> None:
    properties = MANIFEST["contributes"]["configuration"]["properties"]
    given = {name.removeprefix("edgedec."): one["default"] for name, one in properties.items()}
    assert _FOREIGN - {"trace"} <= given.keys()
    usual = ServerSettings()
    assert usual.changed_by(given) == usual
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in readme for name in properties)


def test_an_untrusted_folder_names_no_file() -> None:
    restricted = MANIFEST["capabilities"]["untrustedWorkspaces"]["restrictedConfigurations"]
    places = {"command", "bundle", *(field.name for field in fields(TypingMemory))}
    assert {name.removeprefix("edgedec.") for name in restricted} == places


def test_the_program_is_found_where_python_is(tmp_path: Path) -> None:
    file = tmp_path / "work/.venv/bin/edgedec"
    file.parent.mkdir(parents=True)
    file.touch()
    places = (
        f"program.places([{json.dumps(str(tmp_path / 'work'))}], {{PATH: '/x:/y'}}, '/z/python')"
    )
    assert node(places) == ["/z", str(file.parent), str(tmp_path / "work/venv/bin"), "/x", "/y"]
    found = f"program.firstProgram({places}) ?? null"
    assert node(found) is None  # it cannot be run
    file.chmod(0o755)
    assert node(found) == str(file)


def test_models_are_listed_ready_ones_first() -> None:
    model = {"n_bytes": 5_000_000, "for": "texts"}
    table = {
        "models": [
            {**model, "name": "large", "state": "needs 9 GB RAM", "fits": False},
            {**model, "name": "Org/Name", "state": "pulled"},
            {**model, "name": "new", "state": "to fetch", "fits": True},
        ],
        "bundles": [{"path": "/c/org--name.edgedec", "model": "Name", "n_bytes": 7_000_000}],
    }
    entries = node(f"models.entriesOf({json.dumps(table)})")
    shown = [(entry["label"], entry.get("description")) for entry in entries]
    assert shown == [
        ("org--name", "ready, 7 MB"),
        ("new", "download, 5 MB"),
        ("Open a GGUF file or a bundle…", None),
    ]
    assert entries[0]["bundle"] == "/c/org--name.edgedec"


@pytest.mark.long
def test_the_extension_is_built_and_packed(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path / "vscode"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("node_modules", "out"))
    for command in (
        ["npm", "install", "--no-audit", "--no-fund"],
        ["npm", "run", "package", "--", "--out", "edgedec.vsix"],
    ):
        subprocess.run(command, cwd=folder, check=True, timeout=600, capture_output=True)
    with zipfile.ZipFile(folder / "edgedec.vsix") as packed:
        names = set(packed.namelist())
        built = packed.read("extension/out/extension.js").decode()
    assert {f"extension/{name}" for name in ("readme.md", "icon.png", "package.json")} <= names
    assert not any("node_modules" in name or "/src/" in name for name in names)
    assert "textDocument/inlineCompletion" in built
    assert 'require("vscode")' in built
