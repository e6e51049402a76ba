"""A text in the KV cache of a model: its tokens, their rows, and the pass in flight."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from edgedec.models.errors import SessionError
from edgedec.models.source_tokens import n_source
from edgedec.runtime.sequences.capability_checks import (
    check_capabilities,
    check_room,
    check_way,
)
from edgedec.runtime.sequences.model import KVPredictor, Model
from edgedec.runtime.sequences.pass_times import NEVER_S, PassTimes
from edgedec.runtime.sequences.passes import Pass, compute
from edgedec.runtime.sequences.rows import Float32, Rows
from edgedec.runtime.sequences.state import Layout, SessionState, check_continues, check_reach
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.common_prefix import common_prefix


class _Place(NamedTuple):
    """Where the rows of a pass are: tokens before them, and the layers computed by now.

    sees_predicted: its rows depend on predicted ones.
    """

    n_past: int
    layers: range
    sees_predicted: bool = False


class TokenSequence:
    """Committed tokens, exactly those whose rows are in the KV cache, and a pending pass.

    Behind them may be *partial* tokens, left by passes that stopped early: rows of their first
    `depth` layers are in the KV cache and those of the others are not, or are predictions
    (`predict`). Passes over the other layers, from the hidden states that the first gave, commit
    them; `truncate` and `restore` forget them, and `snapshot` leaves them out.

    Sequences of one model know nothing of each other.
    """

    def __init__(self, model: Model, context: int, times: PassTimes | None = None) -> None:
        """Makes an empty sequence of at most ``context`` tokens.

        times: of passes of the model, which sequences share that compute by turns.
        """
        self.model = model
        self.times = PassTimes() if times is None else times
        self.times.join(self)
        self.written_s = NEVER_S
        self.context = context
        self.row_ms = 0.0  # what a row of a long pass took of late; 0 while not known
        self.state = model.new_state(context)
        self._layers = range(model.n_layers)
        self._tokens: list[int] = []
        self.tokens: Sequence[int] = self._tokens  # those committed; not to be changed
        self._n_exact = sys.maxsize  # tokens before any whose rows are predictions for good
        self._partial: list[int] = []
        self._depth = 0  # layers of the partial tokens that are computed
        self._n_predicted = (
            0  # partial tokens with rows of the others, predicted or computed over such
        )
        self._pending: TokenTree | None = None
        self._pending_place = _Place(0, range(0))
        self._is_pending_gated = False
        self._kept: tuple[int, Rows] | None = None  # tokens, and the row after them
        self.group = ""  # of the request; other groups' texts learn nothing of this one
        self._is_closed = False

    @property
    def n_tokens(self) -> int:
        """Number of committed tokens."""
        return len(self._tokens)

    @property
    def n_source(self) -> int:
        """Committed tokens that are a source, see `source_tokens`; 0 while it is not whole."""
        return self.n_source_of(self._tokens)

    def n_source_of(self, text: Sequence[int]) -> int:
        """Returns how many tokens of ``text`` are its source."""
        model = self.model
        return n_source(text, model.vocab_size) if model.capabilities.sources else 0

    @property
    def n_exact(self) -> int:
        """Committed tokens before the first whose rows are predictions."""
        return min(self._n_exact, len(self._tokens))

    @property
    def partial(self) -> Sequence[int]:
        """The partial tokens; not to be changed."""
        return self._partial

    @property
    def depth(self) -> int:
        """Layers of the partial tokens whose rows are in the KV cache; 0 without any."""
        return self._depth if self._partial else 0

    @property
    def vocab_size(self) -> int:
        """Width of a logits row."""
        return self.model.vocab_size

    @property
    def nbytes(self) -> int:
        """Bytes of KV cache that committed tokens occupy."""
        return self.state.nbytes(len(self._tokens))

    @property
    def look_back(self) -> int:
        """Tokens whose rows a pass needs in all layers; 0 where no layer keeps the latest only."""
        return self.state.look_back

    @property
    def is_closed(self) -> bool:
        """The KV cache was released, or the model."""
        return self._is_closed or self.model.is_closed

    @property
    def layout(self) -> Layout:
        """What the rows of its states are made of."""
        return self.snapshot(0).layout

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
        """Returns the rows of a pass at once; arguments as of `Pass`."""
        return self.run(
            Pass(self, tree, logit_rows, hidden_layers, n_known, with_logits, layer_gates)
        )

    def run(self, pass_: Pass) -> Rows:
        """Returns the rows of a pass, pending from then on; a SessionError where it cannot be."""
        check_capabilities(pass_)
        return compute((pass_,))[0]

    @property
    def pending(self) -> tuple[TokenTree | None, _Place]:
        """The pass that awaits its commit, for `put_back`."""
        return self._pending, self._pending_place

    def put_back(self, pending: tuple[TokenTree | None, _Place]) -> None:
        """Undoes `begin`, so that its pass may begin once more."""
        self._pending, self._pending_place = pending

    def begin(self, pass_: Pass) -> None:
        """Makes room for a pass that is about to be computed; a SessionError if it does not fit."""
        self._check_open()
        place, n_nodes = self._place_of(pass_), len(pass_.tree.tokens)
        check_room(self.context, place.n_past, n_nodes)
        if pass_.n_known:
            self._check_known(pass_.tree, pass_.n_known, place)
        self._pending = None
        self._pending_place = place
        self.state.reserve(len(self._tokens), place.n_past + n_nodes)

    def finish(self, pass_: Pass) -> None:
        """Takes the pass of the latest `begin` as pending: the model has computed it."""
        is_gated = pass_.layer_gates is not None and not all(pass_.layer_gates)
        self._is_pending_gated = is_gated or (pass_.n_known > 0 and self._is_pending_gated)
        if self._pending_place.sees_predicted:
            self._n_predicted = max(self._n_predicted, pass_.n_skipped + len(pass_.tree))
        self._pending = pass_.tree

    def arrange(self, rows: Sequence[int]) -> None:
        """Keeps ``rows`` of the last pass, which stopped early, in this order; drops the others.

        A pass of the other layers may then go over the tree of these, parents before children.
        """
        place = self._pending_place
        assert self._pending is not None
        assert place.layers.stop < self._layers.stop
        tree = self._pending.part(rows)
        self._pending = None
        self.state.commit(place.n_past, tree, rows)
        self._pending = tree

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the rows of the last pass named by ``path`` (root first), drops the others."""
        tree, place = self._pending, self._pending_place
        if tree is None or self._is_pending_gated or place.sees_predicted:
            tree = self._check_committable()
        check_way(tree, path)
        self.state.commit(place.n_past, tree, path)
        self._pending = None
        tokens = [*map(tree.tokens.__getitem__, path)]
        # Each of these is one step that no interrupt can split.
        if place.layers.stop < self._layers.stop:
            self._depth = place.layers.stop
            self._partial.extend(tokens)
            return
        rest, self._partial = self._partial[len(tokens) :], []
        self._n_predicted = max(0, self._n_predicted - len(tokens))
        self._tokens.extend(tokens)
        self._partial = rest

    def predict(self, predictor: KVPredictor, hidden: Float32) -> None:
        """Predicts what is missing of the latest partial tokens, one for each row of ``hidden``.

        Passes may then skip them (`Pass.n_skipped`). hidden: behind the layers that are computed.

        Raises:
            SessionError: The predictor is of other layers, or partial tokens before those have no
                predicted rows.
        """
        self._check_open()
        first = len(self._partial) - len(hidden)
        if predictor.depth != self.depth or not 0 <= first <= self._n_predicted:
            raise SessionError(
                f"predicted rows of {len(hidden)} tokens behind layer {predictor.depth}, expected "
                f"those of partial tokens from {self._n_predicted} of {len(self._partial)} on, "
                f"behind layer {self.depth}"
            )
        start = len(self._tokens) + first
        self.state.reserve(len(self._tokens), start + len(hidden))
        predictor.write(self.state, start, hidden)
        self._n_predicted = len(self._partial)

    def adopt_predicted(self) -> None:
        """Commits the partial tokens with predicted rows, which makes what follows approximate.

        Raises:
            SessionError: Some of them have no predicted rows.
        """
        if self._n_predicted < len(self._partial):
            raise SessionError(
                f"{len(self._partial)} partial tokens, {self._n_predicted} with predicted rows: "
                "predict those of the others first"
            )
        self._pending = None
        self._n_exact = self.n_exact
        adopted, self._partial, self._n_predicted = self._partial, [], 0
        self._tokens.extend(adopted)

    def append_predicted(
        self, tokens: Sequence[int], predictor: KVPredictor, features: Float32
    ) -> None:
        """Commits ``tokens`` with predicted rows in all layers: what follows is approximate.

        features: what the predictor makes rows of, one for each token.

        Raises:
            SessionError: The predictor writes later layers only, some tokens are partial, or rows
                and room are not as many as tokens.
        """
        self._check_open()
        if predictor.depth or self._partial or len(features) != len(tokens):
            raise SessionError(
                f"{len(features)} rows for {len(tokens)} tokens, behind layer {predictor.depth}, "
                f"after {len(self._partial)} partial ones: expected one each, behind layer 0"
            )
        check_room(self.context, start := len(self._tokens), len(tokens))
        self._pending = None
        self.state.reserve(start, start + len(tokens))
        predictor.write(self.state, start, features)
        self._n_exact = self.n_exact
        self._tokens.extend(tokens)

    def truncate(self, n_tokens: int) -> None:
        """Forgets every committed token after the first ``n_tokens``, and any pending pass.

        Raises:
            SessionError: There are not that many, or a layer with a window has lost the rows that
                a pass behind them looks at; `rewind` then begins anew.
        """
        if not 0 <= n_tokens <= len(self._tokens):
            raise SessionError(
                f"truncate to {n_tokens} tokens, expected 0 to {len(self._tokens)} (those "
                "committed)"
            )
        if self.reachable(n_tokens) != n_tokens:
            raise SessionError(
                f"truncate to {n_tokens} of {len(self._tokens)} tokens, but layers with a window "
                "have lost rows before them: truncate to 0 and compute the text again"
            )
        self._pending = None
        self._partial, self._n_predicted = [], 0
        if self._kept is not None and n_tokens < self._kept[0]:
            self._kept = None
        del self._tokens[n_tokens:]
        self.state.truncate(n_tokens)
        if n_tokens <= self._n_exact:
            self._n_exact = sys.maxsize

    def keep_row(self, rows: Rows) -> None:
        """Keeps a copy of the last of ``rows``, the one after the committed tokens, with them."""
        hidden = {layer: states[-1:] for layer, states in rows.hidden.items()}
        self._kept = len(self._tokens), replace(rows, hidden=hidden).copy()

    def row_after(self, text: Sequence[int]) -> Rows | None:
        """Returns the row after ``text`` if it was kept last; the arrays are not to be changed."""
        if self._kept is None:
            return None
        n_tokens, rows = self._kept
        is_known = n_tokens == len(text) and common_prefix(self._tokens, text) == n_tokens
        return rows if is_known else None

    def reachable(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that `truncate` can leave.

        None where that would cut a source, which an encoder reads as a whole.
        """
        is_whole = not self.model.capabilities.sources or 0 < self.n_source <= n_tokens
        return self.state.reachable(n_tokens) if is_whole else 0

    def resting(self, n_tokens: int) -> int:
        """Returns the most tokens, up to ``n_tokens``, that `snapshot` can be of."""
        return self.state.resting(self.reachable(n_tokens))

    def rewind(self, n_tokens: int) -> int:
        """Truncates to ``n_tokens`` or, if that is too far, to fewer; returns what is left."""
        n_left = self.reachable(n_tokens)
        self.truncate(n_left)
        return n_left

    def snapshot(self, n_tokens: int | None = None, start: int = 0) -> SessionState:
        """Returns copies of the rows of committed tokens ``start`` to ``n_tokens``.

        n_tokens: all that are committed, and exact, when None; fewer, as `resting` says, where a
            state is of fewer.
        """
        n_tokens = self.resting(self.n_exact) if n_tokens is None else n_tokens
        if not 0 <= start <= n_tokens <= self.n_exact:
            raise SessionError(
                f"snapshot of tokens {start} to {n_tokens}, expected 0 to {self.n_exact}, "
                "those committed, and exact"
            )
        return SessionState(
            tuple(self._tokens[:n_tokens]), start, self.state.snapshot(start, n_tokens)
        )

    def restore(self, *pieces: SessionState) -> None:
        """Makes the tokens of a state the committed ones, as if they had been computed.

        pieces: a state, or several of which each continues the one before.

        Raises:
            SessionError: They do not fit this sequence, which then stays as it was.
        """
        self._check_open()
        known: Sequence[int] = self._tokens
        for piece in pieces:
            check_continues(piece, known, self.layout, self.context, self.model.n_token_ids)
            known = piece.tokens
        check_reach(pieces, self.state.look_back)
        start = pieces[0].start
        self.truncate(start)  # an interrupt must not leave tokens with others' rows
        for piece in pieces:
            self.state.restore(piece.start, len(piece.tokens), piece.kv_rows)
        self._tokens.extend(known[start:])

    def begin_like(self, other: TokenSequence, n_tokens: int) -> None:
        """Makes the first tokens of another text of the model the committed ones.

        Rows that both may read are not copied where the backend can do without.

        Raises:
            SessionError: The other text cannot go back to them, or they are not exact.
        """
        self._check_open()
        if not n_tokens <= other.n_exact or other.reachable(n_tokens) != n_tokens:
            raise SessionError(
                f"the first {n_tokens} tokens of a text of {other.n_tokens}, of which "
                f"{other.n_exact} are exact, cannot be another's: take fewer"
            )
        n_common = self.rewind(min(n_tokens, common_prefix(self.tokens, other.tokens)))
        if n_common == n_tokens:
            return
        self.truncate(0 if self.state.look_back else n_common)
        tokens = other.tokens[:n_tokens]
        if self.state.share(other.state, n_tokens):
            self._tokens[:] = tokens
        else:
            self.restore(other.snapshot(n_tokens, self.n_tokens))

    def close(self) -> None:
        """Releases the KV cache; further passes are a SessionError."""
        self._is_closed = True
        self._pending = self._kept = None
        self._tokens.clear()
        self.state.close()

    def _check_open(self) -> None:
        if self._is_closed or self.model.is_closed:
            raise SessionError("the model is closed: load the bundle again")

    def _place_of(self, pass_: Pass) -> _Place:
        """Returns where the rows of a pass are; raises a SessionError where they cannot be."""
        layers = pass_.layers or self._layers
        if layers.start == 0:
            n_past = len(self._tokens) + len(self._partial)
            if self._partial and layers.stop != self._depth:
                raise SessionError(
                    f"a pass of the layers to {layers.stop} follows {len(self._partial)} tokens of "
                    f"which {self._depth} layers are computed: complete them or truncate first"
                )
            return _Place(n_past, layers)
        n_past = len(self._tokens) + pass_.n_skipped
        before = _Place(n_past, range(layers.start))
        if self._pending == pass_.tree and self._pending_place == before:
            return _Place(n_past, range(layers.stop))
        stop = pass_.n_skipped + len(pass_.tree)
        is_partial = list(pass_.tree.tokens) == self._partial[pass_.n_skipped : stop]
        if not (is_partial and pass_.tree.is_chain and layers.start == self._depth):
            raise SessionError(
                f"a pass from layer {layers.start} needs its tokens computed up to there: run "
                "those layers over the same tokens first"
            )
        if pass_.n_skipped > self._n_predicted:
            raise SessionError(
                f"a pass skips {pass_.n_skipped} partial tokens, of which {self._n_predicted} "
                "have predicted rows: predict those of the others first"
            )
        return _Place(n_past, range(layers.stop), sees_predicted=pass_.n_skipped > 0)

    def _check_known(self, tree: TokenTree, n_known: int, place: _Place) -> None:
        """Raises a SessionError unless the pending pass computed the first tokens of ``tree``."""
        known, tree_start = self._pending, (tree.tokens[:n_known], tree.parents[:n_known])
        if known is None or (known.tokens[:n_known], known.parents[:n_known]) != tree_start:
            raise SessionError(
                f"the first {n_known} tokens of the pass are not those of the pass before it"
            )
        if self._pending_place != place:
            raise SessionError(
                f"the first {n_known} tokens of the pass were computed in the layers "
                f"{self._pending_place.layers}, expected {place.layers}"
            )
        if not 0 < n_known < len(tree):
            raise SessionError(f"n_known is {n_known}, expected 0 to {len(tree) - 1}")

    def _check_committable(self) -> TokenTree:
        """Returns the pending tree; raises a SessionError where it cannot be committed."""
        if self._pending is None:
            raise SessionError("commit needs a pass that was not committed yet; run one first")
        if self._is_pending_gated:
            raise SessionError(
                "the last pass left sub-layers out, so it cannot be committed: run the whole first"
            )
        if self._pending_place.sees_predicted:
            raise SessionError(
                "the last pass looked at predicted rows: complete the tokens before it first"
            )
        return self._pending
