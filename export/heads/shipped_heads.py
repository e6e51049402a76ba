"""Draft heads of the distribution `edgedec-heads`, where that is installed.

`heads.toml` in it lists the heads: file, its SHA-256, and what configuration its model has. Which
weights a head was trained for is in its own file, as `model_digest`.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from edgedec.export.heads.head_file import HeadFile, read_head_file
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields

DISTRIBUTION = "edgedec-heads"
INDEX = "heads.toml"

_AGAIN = f"install {DISTRIBUTION} again"


@dataclass(frozen=True)
class ShippedHead:
    """A head of the distribution.

    name: of its model. sha256: of its file. config: `config_digest` of its model.
    """

    name: str
    path: Path
    sha256: str
    config: str

    def read(self) -> HeadFile:
        """Returns the head.

        Raises:
            CheckpointError: The file is missing, or not as the list says.
        """
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"cannot read {self.path}: {error.strerror}; {_AGAIN}") from None
        if (digest := hashlib.sha256(content).hexdigest()) != self.sha256:
            raise CheckpointError(
                f"{self.path.name} has the SHA-256 {digest[:12]}, expected {self.sha256[:12]}: "
                f"{_AGAIN}"
            )
        return read_head_file(self.path)


@dataclass(frozen=True)
class Candidates:
    """Heads for models of one configuration. damaged: why others cannot be had, a line each."""

    files: tuple[HeadFile, ...] = ()
    damaged: tuple[str, ...] = ()


def heads_folder() -> Path | None:
    """Returns the folder of the distribution, None where it is not installed."""
    spec = find_spec("edgedec_heads")
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def shipped_heads() -> dict[str, ShippedHead]:
    """Returns the heads of the distribution by the names of their models.

    Raises:
        CheckpointError: Its list is missing or damaged.
    """
    folder = heads_folder()
    if folder is None:
        return {}
    try:
        listed = tomllib.loads((folder / INDEX).read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {folder / INDEX}: {error.strerror}; {_AGAIN}") from None
    except (ValueError, RecursionError):  # of TOML, and of UTF-8
        raise CheckpointError(f"{folder / INDEX} is no list of heads: {_AGAIN}") from None
    return {name: _read_entry(folder, name, entry) for name, entry in listed.items()}


def find_candidates(config: ModelConfig) -> Candidates:
    """Returns the heads that may be for a model of this configuration."""
    try:
        heads = shipped_heads()
    except CheckpointError as error:
        return Candidates(damaged=(str(error),))
    digest = config_digest(config)
    files: list[HeadFile] = []
    damaged: list[str] = []
    for head in heads.values():
        if head.config == digest:
            try:
                files.append(head.read())
            except CheckpointError as error:
                damaged.append(str(error))
    return Candidates(tuple(files), tuple(damaged))


def config_digest(config: ModelConfig) -> str:
    """Returns what identifies a configuration."""
    canonical: Mapping[str, object] = config.canonical()
    return hashlib.sha256(json.dumps(canonical, sort_keys=True).encode()).hexdigest()[:32]


def _read_entry(folder: Path, name: str, entry: object) -> ShippedHead:
    fields = Fields(entry, f"{INDEX}: {name}", CheckpointError, _AGAIN)
    fields.exactly({"file", "sha256", "config"})
    file = fields.text("file")
    if file != Path(file).name or file in ("", ".", ".."):
        fields.fail("file", file, "the name of a file beside the list")
    return ShippedHead(name, folder / file, fields.text("sha256"), fields.text("config"))
