"""What KV caches have in common that keep every row of a text."""

from __future__ import annotations

from edgedec.runtime.backends.model_facts import ModelFacts
from edgedec.runtime.sequences.model import SequenceState


class WholeCache:
    """The part of a `SequenceState` that is alike where no row is ever dropped for being old.

    `reserve` and `truncate` are of those with memory for the whole context from the beginning,
    whose rows are written anew.
    """

    _model: ModelFacts

    @property
    def look_back(self) -> int:
        return 0

    @property
    def checkpoints(self) -> tuple[int, ...]:
        return ()

    def nbytes(self, n_tokens: int) -> int:
        return n_tokens * self._model.contract.kv.row_nbytes

    def reachable(self, n_tokens: int) -> int:
        """Returns all of them: layers with a window keep all rows, too."""
        return n_tokens

    def resting(self, n_tokens: int) -> int:
        """Returns all of them, too."""
        return n_tokens

    def share(self, other: SequenceState, n_tokens: int) -> bool:
        """Returns False: each text has memory of its own."""
        return False

    def reserve(self, n_kept: int, stop: int) -> None:
        """Nothing to do: there is room for the whole context."""

    def truncate(self, n_tokens: int) -> None:
        """Nothing to do: rows are written anew."""
