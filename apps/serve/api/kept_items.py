"""Items of the last answers, which clients of responses name by their ids in later turns."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any

from edgedec.apps.serve.core import ServeError


class KeptItems:
    """Items by id, in memory: the last ones, up to a number. Any thread may use it."""

    def __init__(self, n_most: int = 1024) -> None:
        self._n_most = n_most
        self._items: OrderedDict[str, Mapping[str, Any]] = OrderedDict()
        self._lock = Lock()

    def keep(self, items: Iterable[Mapping[str, Any]]) -> None:
        """Keeps ``items``, in place of the oldest ones."""
        with self._lock:
            for item in items:
                self._items[item["id"]] = item
            while len(self._items) > self._n_most:
                self._items.popitem(last=False)

    def find(self, identity: str) -> Mapping[str, Any]:
        """Returns an item.

        Raises:
            ServeError: It is not here, or not any more.
        """
        with self._lock:
            item = self._items.get(identity)
        if item is None:
            raise ServeError(
                404,
                "not_found_error",
                f"there is no item {identity[:80]!r} here: only the last {self._n_most} items are "
                "kept, until the server ends; send the item itself, or set store to false",
                param="input",
            )
        return item
