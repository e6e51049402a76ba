"""What KV caches have in common that keep every row of a text."""

from __future__ import annotations

from edgedec.runtime.backends._model_facts import ModelFacts


class WholeCache:
    """The part of a `KVCache` that is alike where no row is ever dropped for being old.

    `reserve` and `forget_all` are of those with memory for the whole context from the beginning,
    whose rows are written anew.
    """

    _model: ModelFacts

    @property
    def look_back(self) -> int:
        return 0

    def nbytes(self, n_tokens: int) -> int:
        return n_tokens * self._model.contract.kv.row_nbytes

    def reaches(self, n_tokens: int) -> bool:
        """Says yes: layers with a window keep all rows, too."""
        return True

    def reserve(self, n_kept: int, stop: int) -> None:
        """Nothing to do: there is room for the whole context."""

    def forget_all(self) -> None:
        """Nothing to do: rows are written anew."""
