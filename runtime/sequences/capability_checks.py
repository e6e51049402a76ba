"""Whether a graph can do what a pass asks for, and whether a text has room for it."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.errors import LARGER_CONTEXT, SessionError
from edgedec.models.graph import Capabilities
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.token_tree import TokenTree


def check_capabilities(pass_: Pass) -> None:
    """Raises a SessionError where the graph cannot."""
    can, gates = pass_.sequence.model.capabilities, pass_.layer_gates
    _check_layers(pass_, can)
    _check_kind(pass_.tree, can)
    if not (can.trees or can.blocks or pass_.tree.is_chain):
        raise SessionError(
            "this bundle's graph cannot run a tree of drafts: use a chain, or export with "
            "edgedec's own graph"
        )
    stop = () if pass_.layers is None else (pass_.layers.stop,)
    if missing := [i for i in pass_.hidden_layers if i not in (*can.hidden, *stop)]:
        raise SessionError(
            f"this bundle's graph returns hidden states of the layers {list(can.hidden)}, "
            f"not of {missing[0]}: export the model again with --hidden-layers"
        )
    if pass_.with_mtp and not can.mtp:
        raise SessionError(
            "this bundle's graph has no light heads inside: train some with `edgedec train head "
            "--kind hydra`"
        )
    expected = (len(pass_.tree) - pass_.n_known, can.features)
    if pass_.features is not None and pass_.features.shape != expected:
        raise SessionError(
            f"features have the shape {pass_.features.shape}, expected {expected}: a row for each "
            "token of the pass"
        )
    if gates is None:
        return
    if not can.gates:
        raise SessionError(
            "this bundle's graph cannot leave sub-layers out: export the model again, as a fused "
            "graph"
        )
    if len(gates) != 2 * pass_.sequence.model.n_layers:
        raise SessionError(
            f"got {len(gates)} layer gates, expected {2 * pass_.sequence.model.n_layers}, two for "
            "each layer"
        )


def _check_layers(pass_: Pass, can: Capabilities) -> None:
    """Raises a SessionError unless the layers and hidden states of a pass go together."""
    n_layers = pass_.sequence.model.n_layers
    layers = pass_.layers or range(n_layers)
    if pass_.layers is not None and not can.entry:
        raise SessionError(
            "this bundle's graph has no entry port: export the model again, as a fused graph"
        )
    if not 0 <= layers.start < layers.stop <= n_layers or layers.step != 1:
        raise SessionError(f"a pass of the layers {layers}, expected a range in 0 to {n_layers}")
    if (layers.start > 0) != (pass_.entry is not None):
        raise SessionError(
            f"a pass from layer {layers.start} was given "
            f"{'no' if pass_.entry is None else 'some'} hidden states, expected them from any "
            "layer but the first"
        )
    if layers.start > 0 and pass_.n_known:
        raise SessionError("a pass from a later layer computes all its tokens: n_known is 0")
    if layers.start == 0 and pass_.n_skipped:
        raise SessionError("a pass from the first layer skips no tokens: n_skipped is 0")


def _check_kind(tree: TokenTree, can: Capabilities) -> None:
    """Raises a SessionError unless tokens of a pass see those that rows of the graph see."""
    if can.blocks != tree.is_block:
        raise SessionError(
            "this bundle's model fills masks in: its passes are over blocks of tokens, and texts "
            "are not computed from left to right"
            if can.blocks
            else "this bundle's model writes from left to right: use a chain or a tree"
        )


def check_room(context: int, n_past: int, n_new: int) -> None:
    """Raises a SessionError unless ``n_new`` tokens fit a text of ``context`` behind ``n_past``."""
    needed = n_past + n_new
    if needed > context:
        raise SessionError(
            f"a pass of {n_new} tokens after {n_past} needs {needed} positions, "
            f"the context has {context}; shorten the text, or use {LARGER_CONTEXT}"
        )


def check_way(tree: TokenTree, path: Sequence[int]) -> None:
    """Raises a SessionError unless ``path`` is a way down through ``tree`` from the prefix.

    Through a block any way is one that meets no token twice.
    """
    if tree.places:
        if len(set(path)) < len(path) or not set(path) <= set(range(len(tree))):
            raise SessionError(
                f"path {list(path)} names a token twice, or one that the block of {len(tree)} "
                "tokens does not have"
            )
        return
    previous, parents = -1, tree.parents
    for i in path:
        if not 0 <= i < len(parents) or parents[i] != previous:
            raise SessionError(
                f"path {list(path)} is no way down the tree of the last pass: token {i} "
                f"does not hang on {previous}"
            )
        previous = i
