"""One loaded model with its KV cache and position: the contract every backend meets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, Self

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import SessionError
from edgedec.runtime.sessions.row_stats import RowStats
from edgedec.runtime.sessions.state import Layout, SessionState, check_counts, check_layout

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class TokenTree:
    """Tokens of one pass and what each hangs on. A chain is the special case.

    tokens: token ids, parents before children.
    parents: index within this pass of each token's parent; -1 hangs on the committed prefix.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise SessionError("a pass needs at least one token, got none")
        if len(self.parents) != len(self.tokens):
            raise SessionError(
                f"token tree has {len(self.tokens)} tokens and {len(self.parents)} parents, "
                "expected as many of each"
            )
        for i, parent in enumerate(self.parents):
            if not -1 <= parent < i:
                raise SessionError(f"parent of token {i} is {parent}, expected -1 to {i - 1}")

    @classmethod
    def chain(cls, tokens: Sequence[int]) -> Self:
        """Returns the tree in which every token follows the one before it."""
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)))

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Distance of each token from the committed prefix, 0 for its first followers."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return tuple(depths)

    @cached_property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def ancestry(self) -> npt.NDArray[np.bool_]:
        """Returns ``a[i, j]``: token j is token i or one of its ancestors.

        Shapes: [T, T] bool.
        """
        mask = np.eye(len(self), dtype=np.bool_)
        for i, parent in enumerate(self.parents):
            if parent >= 0:
                mask[i] |= mask[parent]
        return mask


@dataclass
class Rows:
    """What a pass returns. The arrays may be reused by the session's next pass.

    row_stats: of the asked rows, where the graph computes them.

    Shapes:
        logits: [R, V] float32, one row per asked row; [0, V] when statistics alone were asked
            for and the graph computes them.
        hidden: layer -> [T, hidden_size] float32, the residual stream after that many layers.
    """

    logits: Float32
    hidden: dict[int, Float32] = field(default_factory=dict)
    row_stats: RowStats | None = None

    @property
    def stats(self) -> RowStats:
        """Statistics of the asked rows."""
        if self.row_stats is None:
            self.row_stats = RowStats.of(self.logits)
        return self.row_stats


def exit_at(layer: int, n_layers: int) -> tuple[bool, ...]:
    """Returns the layer gates of a pass that ends after ``layer`` of ``n_layers`` layers.

    Raises:
        SessionError: There is no such layer.
    """
    if not 0 <= layer <= n_layers:
        raise SessionError(f"exit layer is {layer}, expected 0 to {n_layers}")
    return tuple(i < 2 * layer for i in range(2 * n_layers))


class ModelSession(Protocol):
    """A model, its KV cache and its position. One request at a time."""

    @property
    def tokens(self) -> Sequence[int]:
        """The committed tokens: exactly those whose rows are in the KV cache."""

    @property
    def n_tokens(self) -> int:
        """Number of committed tokens."""

    @property
    def context(self) -> int:
        """Most tokens the KV cache holds."""

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""

    @property
    def nbytes(self) -> int:
        """Bytes of KV cache that committed tokens occupy."""

    @property
    def is_closed(self) -> bool:
        """The model was released."""

    def forward(
        self,
        tree: TokenTree,
        logit_rows: Sequence[int],
        hidden_layers: Sequence[int] = (),
        *,
        n_known: int = 0,
        with_logits: bool = True,
        layer_gates: Sequence[bool] | None = None,
    ) -> Rows:
        """Returns the asked rows of a pass over ``tree``, which commits nothing.

        Args:
            logit_rows: Indices into ``tree``, none below ``n_known``.
            n_known: Tokens that ``tree`` begins with and the pending pass computed already; a
                tree grows level by level that way, and only its new tokens cost time.
            with_logits: Whether `Rows.logits` is wanted; statistics always are. Rows of logits
                that nobody wants are not copied.
            layer_gates: Sub-layers that run: 2i is the attention of layer i, 2i + 1 its MLP; all
                when None. A pass that leaves some out may grow but not be committed, for its
                rows of the KV cache are incomplete.

        Raises:
            SessionError: The pass does not fit the context or the pending pass, or the graph
                cannot leave sub-layers out.
        """

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the rows of the last pass named by ``path`` (root first), drops the others."""

    def truncate(self, n_tokens: int) -> None:
        """Forgets every committed token after the first ``n_tokens``."""

    def snapshot(self, n_tokens: int | None = None, start: int = 0) -> SessionState:
        """Returns copies of the rows of committed tokens ``start`` to ``n_tokens``.

        n_tokens: all that are committed when None.
        """

    def restore(self, state: SessionState) -> None:
        """Makes the tokens of ``state`` the committed ones, as if they had been computed.

        Raises:
            SessionError: ``state`` does not fit this session, which then stays as it was.
        """

    def close(self) -> None:
        """Releases the model; further passes are a SessionError."""


class TokenLedger:
    """Which tokens are committed and which pass awaits its commit. Shared by the backends."""

    def __init__(self, context: int) -> None:
        self.context = context
        self.tokens: list[int] = []
        self.pending: TokenTree | None = None
        self.is_pending_gated = False

    def expect(self, tree: TokenTree, n_known: int, is_gated: bool) -> None:
        """Notes the pass that `check_path` is about from now on.

        is_gated: sub-layers were left out; what grew from such a pass is incomplete as well.
        """
        self.is_pending_gated = is_gated or (n_known > 0 and self.is_pending_gated)
        self.pending = tree

    def check_room(self, tree: TokenTree) -> None:
        """Raises a SessionError unless the KV cache has a row for every token of ``tree``."""
        needed = len(self.tokens) + len(tree.tokens)
        if needed > self.context:
            raise SessionError(
                f"a pass of {len(tree)} tokens after {len(self.tokens)} needs {needed} positions, "
                f"the context has {self.context}; load with a larger context or shorten the text"
            )

    def check_known(self, tree: TokenTree, n_known: int) -> None:
        """Raises a SessionError unless the pending pass computed the first tokens of ``tree``."""
        if n_known == 0:
            return
        known, tree_start = self.pending, (tree.tokens[:n_known], tree.parents[:n_known])
        if known is None or (known.tokens[:n_known], known.parents[:n_known]) != tree_start:
            raise SessionError(
                f"the first {n_known} tokens of the pass are not those of the pass before it"
            )
        if not 0 < n_known < len(tree):
            raise SessionError(f"n_known is {n_known}, expected 0 to {len(tree) - 1}")

    def check_path(self, path: Sequence[int]) -> TokenTree:
        """Returns the pending tree when ``path`` is a way down through it from the prefix."""
        tree = self.pending
        if tree is None:
            raise SessionError("commit needs a pass that was not committed yet; call forward first")
        if self.is_pending_gated:
            raise SessionError(
                "the last pass left sub-layers out, so it cannot be committed: run the whole pass "
                "first"
            )
        previous = -1
        for i in path:
            if not 0 <= i < len(tree) or tree.parents[i] != previous:
                raise SessionError(
                    f"path {list(path)} is no way down the tree of the last pass: token {i} "
                    f"does not hang on {previous}"
                )
            previous = i
        return tree

    def accept(self, tree: TokenTree, path: Sequence[int]) -> None:
        """Records the tokens of ``path`` as committed, in one step no interrupt can split."""
        self.pending = None
        self.tokens.extend([tree.tokens[i] for i in path])

    def check_truncate(self, n_tokens: int) -> None:
        """Raises a SessionError unless ``n_tokens`` is a length the session has passed."""
        if not 0 <= n_tokens <= len(self.tokens):
            raise SessionError(
                f"truncate to {n_tokens} tokens, expected 0 to {len(self.tokens)} (those committed)"
            )

    def truncate(self, n_tokens: int) -> None:
        """Forgets the tokens after the first ``n_tokens`` and any pending pass."""
        self.pending = None
        del self.tokens[n_tokens:]

    def check_snapshot(self, n_tokens: int | None, start: int) -> int:
        """Returns how many tokens a snapshot has; a SessionError where there are not as many."""
        n_tokens = len(self.tokens) if n_tokens is None else n_tokens
        if not 0 <= start <= n_tokens <= len(self.tokens):
            raise SessionError(
                f"snapshot of tokens {start} to {n_tokens}, expected 0 to {len(self.tokens)}, "
                "those committed"
            )
        return n_tokens

    def check_state(self, state: SessionState, layout: Layout, vocab_size: int) -> None:
        """Raises a SessionError unless a session of that KV layout can take up ``state``."""
        check_layout(state.layout, layout)
        check_counts(state)
        if len(state.tokens) > self.context:
            raise SessionError(
                f"the state has {len(state.tokens)} tokens, the context {self.context}: load with "
                "a larger context"
            )
        if not all(0 <= token < vocab_size for token in state.tokens):
            raise SessionError(
                f"the state holds token ids from {min(state.tokens)} to {max(state.tokens)}, "
                f"expected 0 to {vocab_size - 1}: it is another model's"
            )
        if state.tokens[: state.start] != tuple(self.tokens[: state.start]):
            raise SessionError(
                f"the state continues {state.start} tokens that are not the session's: restore "
                "what comes before it first"
            )
