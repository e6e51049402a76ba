"""Rows of `edgedec bench --edits` in a JSONL file, from which a run that was ended goes on."""

from __future__ import annotations

import json
from pathlib import Path

from edgedec.apps.bench.edits_job import EditRow
from edgedec.models.errors import ConfigError, EdgedecError


class RowFile:
    """Keeps rows, on the disk if there is a path. A last line without its end is dropped."""

    def __init__(self, path: Path | None) -> None:
        """Reads the rows that the file holds already.

        Raises:
            ConfigError: It is another file, or cannot be written.
        """
        self._path = path
        self._rows: dict[tuple[str, str], EditRow] = {}
        if path is None:
            return
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data[: data.rfind(b"\n") + 1]
            for number, line in enumerate(whole.splitlines(), 1):
                self._read(line, f"{path.name}:{number}")
            if path.exists() and not whole and data[:1] not in (b"", b"{"):
                raise _foreign(path.name)
            with path.open("ab") as file:
                file.truncate(len(whole))
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror}") from None

    def get(self, fingerprint: str, key: str) -> EditRow | None:
        """Returns the row of a case under a setting, if there is one."""
        return self._rows.get((fingerprint, key))

    def add(self, row: EditRow) -> None:
        """Keeps a row."""
        self._rows[row.fingerprint, row.key] = row
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row.to_dict(), allow_nan=False) + "\n")
        except OSError as error:
            raise EdgedecError(
                f"cannot write {self._path}: {error.strerror}; what it holds is kept"
            ) from None

    def _read(self, line: bytes, where: str) -> None:
        try:
            row = EditRow.from_dict(json.loads(line))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise _foreign(where) from None
        self._rows[row.fingerprint, row.key] = row


def _foreign(where: str) -> ConfigError:
    return ConfigError(f"{where} is no row of `edgedec bench --edits`: name another file")
