"""Models by name on this machine: those that were pulled, and bundles made of named models."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from edgedec.export.checkpoints.catalogue import CATALOGUE
from edgedec.export.checkpoints.hub import Fetched, HubName, fetch
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.fields import Fields
from edgedec.system.files import replace_text


@dataclass(frozen=True)
class Pulled:
    """A model that was pulled. source: the file or folder it came to be."""

    name: str
    source: str
    revision: str
    licence: str | None
    n_bytes: int


class Library:
    """Names of models below one folder: records of what was pulled, and bundles."""

    def __init__(self, folder: Path) -> None:
        self._records = folder / "models"
        self._bundles = folder / "bundles"

    def pull(self, text: str, shows_bars: bool = False) -> Pulled:
        """Returns the hub model ``org/name[:FILE]``, fetched, checked and noted.

        The bundle of an earlier revision is removed: the next use makes that of the new one.

        Raises:
            ConfigError: ``text`` names nothing on the hub.
            CheckpointError: as of `fetch`.
        """
        name = HubName.parse(text)
        if name is None:
            raise ConfigError(f"got {text!r}, expected a hub id such as org/name or org/name:FILE")
        pulled = _record(fetch(name, shows_bars))
        before, path = self.find(pulled.name), self._record_path(pulled.name)
        if before is not None and before.revision != pulled.revision:
            shutil.rmtree(self.bundle(pulled.name), ignore_errors=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(asdict(pulled), indent=2))
        return pulled

    def pulled(self) -> list[Pulled]:
        """Returns the models that were pulled, by name; damaged records are left out."""
        pulled = [_read(path) for path in sorted(self._records.glob("*.json"))]
        return [record for record in pulled if record is not None]

    def find(self, name: str) -> Pulled | None:
        """Returns the pulled model ``name``, None if there is none."""
        return _read(self._record_path(name))

    def source(self, name: str) -> str | None:
        """Returns what an export of the model ``name`` reads, None if nobody knows the name.

        Raises:
            CheckpointError: its files are gone.
        """
        if name.lower() in CATALOGUE:
            return name.lower()
        pulled = self.find(name)
        if pulled is not None and not Path(pulled.source).exists():
            raise CheckpointError(
                f"the files of {name} are gone from {pulled.source}: run edgedec models pull {name}"
            )
        return pulled.source if pulled else None

    def bundle(self, name: str) -> Path:
        """Returns where the bundle of the model ``name`` is, once it was exported."""
        return self._bundles / f"{self.slug(name)}.edgedec"

    def bundles(self) -> list[Path]:
        """Returns the bundles that were made of named models."""
        return sorted(path for path in self._bundles.glob("*.edgedec") if path.is_dir())

    def remove(self, name: str) -> int:
        """Removes the bundle of ``name``, and its files if it was pulled; returns bytes freed.

        name: of a model, or the path of a bundle that was made of a named model.

        Raises:
            ConfigError: there is nothing of that name.
        """
        if (path := Path(name)).parent == self._bundles:
            name = path.stem
        pulled, bundle = self.find(name), self.bundle(name)
        if pulled is None and not bundle.is_dir():
            known = ", ".join([p.name for p in self.pulled()] + [b.stem for b in self.bundles()])
            raise ConfigError(f"there is nothing here of {name!r}; there is: {known or 'nothing'}")
        n_freed = _size(bundle)
        shutil.rmtree(bundle, ignore_errors=True)
        if pulled is not None:
            self._record_path(name).unlink()
            is_shared = any(other.revision == pulled.revision for other in self.pulled())
            n_freed += 0 if is_shared else _forget(pulled)
        return n_freed

    def _record_path(self, name: str) -> Path:
        return self._records / f"{self.slug(name)}.json"

    @staticmethod
    def slug(name: str) -> str:
        """Returns ``name`` as file names have it."""
        return re.sub(r"[^\w.-]", "--", name.lower())


def user_library() -> Library:
    """Returns the user's own models by name."""
    return Library(Path(platformdirs.user_cache_dir("edgedec")))


def _record(fetched: Fetched) -> Pulled:
    return Pulled(
        str(fetched.name), str(fetched.source), fetched.revision, fetched.licence, fetched.n_bytes
    )


def _read(path: Path) -> Pulled | None:
    try:
        fields = Fields(json.loads(path.read_bytes()), path.name, CheckpointError)
        return Pulled(
            fields.text("name"),
            fields.text("source"),
            fields.text("revision"),
            fields.optional("licence", fields.text),
            fields.integer("n_bytes", least=0),
        )
    except (OSError, ValueError, RecursionError, CheckpointError):
        return None


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _forget(pulled: Pulled) -> int:
    """Removes a revision from the hub's own store; returns the bytes that freed."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        plan = scan_cache_dir().delete_revisions(pulled.revision)
    except CacheNotFound:
        return 0
    plan.execute()
    return int(plan.expected_freed_size)
