"""What every backend offers: a model, which computes, and states of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from edgedec.models.graph import Capabilities
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree


class SequenceState(Protocol):
    """What a sequence keeps of its tokens in a backend's own layout, such as keys and values.

    Passes of the model read and extend it. It may be unable to go back to every token: layers with
    a window keep the latest rows, and a recurrent state is one for the whole text.
    """

    @property
    def look_back(self) -> int:
        """Tokens whose rows a pass needs in all layers; 0 where no layer keeps the latest only."""

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Numbers of tokens that are kept to go back to and to take snapshots of, rising."""

    def nbytes(self, n_tokens: int) -> int:
        """Returns the bytes that ``n_tokens`` take."""

    def reachable(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that a pass may follow; 0 always may."""

    def resting(self, n_tokens: int) -> int:
        """Returns the most tokens, up to a reachable number, that a snapshot can be taken of."""

    def reserve(self, n_kept: int, stop: int) -> None:
        """Makes room for rows up to ``stop``; passes may still follow the first ``n_kept``."""

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Appends the tokens ``path`` of the latest pass to the first ``n_past``."""

    def truncate(self, n_tokens: int) -> None:
        """Forgets all but the first ``n_tokens``, which `reachable` returned."""

    def share(self, other: SequenceState, n_tokens: int) -> bool:
        """Makes the first tokens of another state of the model those of this one, if it can.

        Nothing is copied that both may read; all else this one had is lost. Returns whether it
        could; nothing changed where not.
        """

    def snapshot(self, start: int, stop: int) -> KVRows:
        """Returns copies of the rows of tokens ``start`` to ``stop``.

        Of layers that keep the latest only, all they have before ``stop``: see `SessionState`.
        """

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        """Puts rows as `snapshot` returns them in place, those of tokens ``start`` to ``stop``."""

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

    def write(self, state: SequenceState, start: int, hidden: Float32) -> None:
        """Writes rows as attention would, one for each row of ``hidden``, from token ``start`` on.

        Shapes: hidden [T, hidden_size].
        """


class Model(Protocol):
    """A graph with its weights and threads: opened once in a process, shared by its sequences.

    It computes; what a text needs to go on is in the state of its sequence.
    """

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
    def n_layers(self) -> int:
        """Layers of the decoder."""

    @property
    def is_closed(self) -> bool:
        """The graph was released."""

    def new_state(self, context: int) -> SequenceState:
        """Returns an empty state for at most ``context`` tokens."""

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of each pass; see `Pass.n_past` for where they go.

        What a pass adds to the state of its sequence is kept apart until it is committed, or the
        next pass.

        Args:
            passes: Of different sequences, no more than `Capabilities.n_sequences`.

        Raises:
            SessionError: One of them failed; none counts as computed.
        """

    def close(self) -> None:
        """Releases the graph; further passes are a SessionError."""
