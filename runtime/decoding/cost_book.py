"""The cost tables of one engine's models: read, measured when first needed, shared by requests."""

from __future__ import annotations

import contextlib
from pathlib import Path

import platformdirs

from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.sequences.passes import Passes
from edgedec.runtime.sequences.sequence import TokenSequence

_DOUBTED = 0.75  # of what kept costs say of a step: a clock alone changes by less


class CostBook:
    """Cost tables by role.

    Args:
        identity: Names models, device and threads; costs measured for one are not used for another,
            and those of an empty one are not kept.
    """

    def __init__(self, identity: str = "") -> None:
        self._identity = identity
        self._tables: dict[str, CostTable] = {}
        self._measured: set[str] = set()  # roles that a request is measuring
        self._kept_ms: dict[str, float] = {}  # of a step, as settled costs that were kept say

    def is_measuring(self, role: str) -> bool:
        """Says whether a request measures what passes of ``role`` cost; others need not."""
        return role in self._measured

    def known(self, role: str) -> CostTable | None:
        """Returns the costs of passes of ``role`` if a run has measured them."""
        if role in self._tables:
            return self._tables[role]
        path = self._path(role)
        return CostTable.load(path, self._identity) if path else None

    def of(self, role: str, sequence: TokenSequence) -> Passes[CostTable]:
        """Returns the costs of passes of ``sequence``'s model; the first few runs measure them."""
        if role not in self._tables:
            path = self._path(role)
            known = CostTable.load(path, self._identity) if path else None
            if known is not None and known.is_settled:
                self._tables[role] = known
                self._kept_ms[role] = known.ms(1)
                return known
            self._measured.add(role)
            try:
                table = yield from CostTable.measure(sequence)
            finally:
                self._measured.discard(role)
            table = table.merged(known) if known else table
            if path:
                table.save(path, self._identity)
            self._tables[role] = table
        return self._tables[role]

    def review(self, role: str) -> None:
        """Removes kept costs of ``role`` where passes now take far less time than these say.

        Others computed while those were measured, so the next runs measure again.
        """
        kept_ms, path = self._kept_ms.get(role), self._path(role)
        if kept_ms and path and self._tables[role].ms(1) < _DOUBTED * kept_ms:
            del self._kept_ms[role]
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)

    def _path(self, role: str) -> Path | None:
        if not self._identity:
            return None
        folder = Path(platformdirs.user_cache_dir("edgedec")) / "costs"
        return folder / f"{self._identity}-{role}.json"
