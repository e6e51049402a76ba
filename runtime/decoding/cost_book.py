"""The cost tables of one engine's models: read, learned as passes run, shared by requests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import platformdirs

from edgedec.runtime.decoding.cost_table import CostTable

TARGET = "target"
"""Role of the model whose text it is."""


class CostBook:
    """Cost tables by role.

    Args:
        identity: Names models, device and threads; costs learned for one are not used for another,
            and those of an empty one are not kept.
        shares: What a pass over one row of other models takes of the target's, by their roles;
            an estimate, for their first pass.
    """

    def __init__(self, identity: str = "", shares: Mapping[str, float] | None = None) -> None:
        self._identity = identity
        self._shares = shares or {}
        self._tables: dict[str, CostTable] = {}
        self._n_kept: dict[str, float] = {}  # passes that tables had learned from when kept

    def of(self, role: str) -> CostTable:
        """Returns the costs of passes of ``role``: known, kept by earlier runs, or a guess."""
        table = self._tables.get(role)
        if table is None:
            path = self._path(role)
            table = CostTable.load(path, self._identity) if path else None
            if table is not None:
                self._n_kept[role] = table.n_passes
            elif role == TARGET:
                table = CostTable.unknown()
            else:
                table = self.of(TARGET).scaled(self._shares.get(role, 1.0))
            self._tables[role] = table
        return table

    def known(self, role: str) -> CostTable | None:
        """Returns the costs of passes of ``role`` if one was seen."""
        table = self.of(role)
        return table if table.n_passes else None

    def keep(self, role: str) -> None:
        """Keeps the costs of ``role`` for the next runs, where they rest on twice the passes."""
        table, path = self._tables.get(role), self._path(role)
        if table is None or path is None or not table.n_passes:
            return
        if table.n_passes >= 2 * self._n_kept.get(role, 0.0):
            self._n_kept[role] = table.n_passes
            table.save(path, self._identity)

    def _path(self, role: str) -> Path | None:
        if not self._identity:
            return None
        folder = Path(platformdirs.user_cache_dir("edgedec")) / "costs"
        return folder / f"{self._identity}-{role}.json"
