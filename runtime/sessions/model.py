"""A model without a text: what every backend offers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgedec.models.graph import Capabilities
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.rows import Float32, Rows
from edgedec.runtime.sessions.state import KVRows
from edgedec.runtime.sessions.token_tree import TokenTree


class KVCache(Protocol):
    """Keys and values of one text in the layout of a backend, which computes passes over them."""

    @property
    def look_back(self) -> int:
        """Tokens whose rows a pass needs in all layers; 0 where no layer keeps the latest only."""

    def nbytes(self, n_tokens: int) -> int:
        """Returns the bytes that ``n_tokens`` take."""

    def reaches(self, n_tokens: int) -> bool:
        """Says whether the rows are there that a pass behind the first ``n_tokens`` looks at."""

    def reserve(self, n_kept: int, stop: int) -> None:
        """Makes room for rows up to ``stop``; passes may still follow the first ``n_kept``."""

    def forget_all(self) -> None:
        """Learns that no row is of any use, so that a text may begin anew."""

    def compute(self, wanted: Pass, n_past: int, cores: Affinity | None) -> Rows:
        """Returns the rows of a pass after ``n_past`` committed tokens.

        Its keys and values are kept apart until `keep`, or the next pass.

        Args:
            cores: Processors to compute on; those the model was opened for when None.

        Raises:
            SessionError: The pass failed.
        """

    def keep(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Puts the keys and values of the tokens ``path`` of the latest pass behind ``n_past``."""

    def rows(self, start: int, stop: int) -> KVRows:
        """Returns copies of the rows of tokens ``start`` to ``stop``.

        Of layers that keep the latest only, all they have before ``stop``: see `SessionState`.
        """

    def load_rows(self, start: int, stop: int, kv_rows: KVRows) -> None:
        """Puts rows as `rows` returns them in place, those of tokens ``start`` to ``stop``."""

    def close(self) -> None:
        """Releases the memory."""


class KVPredictor(Protocol):
    """Predicts keys and values of later layers from hidden states; opened once, shared."""

    @property
    def depth(self) -> int:
        """The hidden states are those behind so many layers; rows of all others are predicted."""

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""

    def write(self, cache: KVCache, start: int, hidden: Float32) -> None:
        """Writes rows as attention would, one for each row of ``hidden``, from token ``start`` on.

        Shapes: hidden [T, hidden_size].
        """


class Model(Protocol):
    """A graph with its weights and threads: opened once in a process, shared by its sequences."""

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""

    @property
    def n_token_ids(self) -> int:
        """Tokens it can read; more than it has logits for where its head is trimmed."""

    @property
    def capabilities(self) -> Capabilities:
        """What its passes may ask for."""

    @property
    def is_movable(self) -> bool:
        """Passes may move to other processors."""

    @property
    def n_layers(self) -> int:
        """Layers of the decoder."""

    @property
    def is_closed(self) -> bool:
        """The graph was released."""

    def new_cache(self, context: int) -> KVCache:
        """Returns an empty KV cache for at most ``context`` tokens."""

    def close(self) -> None:
        """Releases the graph; further passes are a SessionError."""
