"""Brings files to the workers of a Dask cluster, in a folder that goes with the worker."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from distributed import Worker, WorkerPlugin

from edgedec.apps.fleet import tasks
from edgedec.apps.fleet.shipped import Shipped


class FilesPlugin(WorkerPlugin):
    """Writes files down where the tasks of a worker look for them."""

    def __init__(
        self, folders: Mapping[str, Mapping[str, bytes]], names: Mapping[str, str]
    ) -> None:
        """folders: path -> content, by the name of what is shipped. names: as in `use_files`."""
        self._folders, self._names = folders, names
        joined = hashlib.sha256("".join(sorted(folders)).encode()).hexdigest()
        self.name = f"edgedec-files-{joined[:16]}"

    @classmethod
    def of(cls, needed: Mapping[str, Shipped]) -> FilesPlugin:
        """Returns a plugin with the content of folders, which it holds in memory."""
        folders = {
            bundle.name: {path: (bundle.folder / path).read_bytes() for path in bundle.hashes}
            for bundle in needed.values()
        }
        return cls(folders, {alias: bundle.name for alias, bundle in needed.items()})

    def setup(self, worker: Worker) -> None:
        """Writes the files, before the worker gets tasks."""
        root = Path(worker.local_directory) / "edgedec"
        for name, files in self._folders.items():
            for path, content in files.items():
                place = root / "files" / name / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(content)
        tasks.use_files(root, self._names)
