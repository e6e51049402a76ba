"""A toy model that tells what is copied out of its KV caches."""

from __future__ import annotations

from edgedec.runtime.sequences.state import KVRows

from ..conftest import ToyCache, ToyModel


class LazyModel(ToyModel):
    """A `ToyModel` that counts the rows copied out of its KV caches."""

    n_copied = 0

    def new_state(self, context: int) -> ToyCache:
        return LazyCache(self)


class LazyCache(ToyCache):
    """A KV cache of a `LazyModel`."""

    def __init__(self, model: LazyModel) -> None:
        super().__init__(model)
        self._counting = model

    def snapshot(self, start: int, stop: int) -> KVRows:
        self._counting.n_copied += stop - start
        return super().snapshot(start, stop)
