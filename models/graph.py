"""The graph contract: what a compiled graph takes, gives and can do.

A compiler (`edgedec.export.compilers`) states it, the manifest carries it, a backend
(`edgedec.runtime.backends`) reads it. Nobody finds out by trying, and nobody types a port's name a
second time. Of a pass over T rows, R of them with logits, after P tokens (T and P as each backend
counts them), the ports are:

Inputs:
    input_ids [1, T - E] int64; position_ids [1, T] int64; logit_rows [R] int64.
    entry [1, E, hidden_size] float32: what the residual stream of the last E rows begins as,
        instead of embeddings; E is T or 0. See `Capabilities`.
    features [1, T, F] float32: what a draft head reads beside each token; see `draft_heads`.
    parents [1, N] int64: for each node of the pending tree its parent's index, -1 for the prefix;
        the last T belong to this pass. past_length [1] int64: committed tokens, or rows of the KV
        cache before those that the pass writes.
    sequences, ring_sequences [S, 5] int64, in place of past_length: of each sequence whose rows are
        in the pass its committed tokens, its share of T, its share of N, and the first panel and
        the number of panels of k_cache and v_cache, or k_ring and v_ring, that are its own. Rows,
        nodes and positions of sequences follow one another; parents count from a sequence's first
        node. See `Capabilities.n_sequences`.
    attention_bias [1, 1, T, P + T] float32: 0 where a row may look, a large negative number
        elsewhere. source_bias, alike, of the source of an encoder-decoder's text, which
        attention_bias hides. sources [S] int64, in place of both: tokens of each sequence's source.
        attention_mask [1, P + T] int64: ones.
    layer_gates [2 * n_layers] int64: entry 2i for the attention of layer i, 2i + 1 for its MLP;
        1 runs, 0 leaves out.
    k_cache, v_cache, k_ring, v_ring: KV panels, written in place. past_key_values.I.key,
        past_key_values.I.value [1, n_kv_heads, P, head_size]: KV rows, which present.I.key,
        present.I.value return; of backends that have both in the same memory, more than P. See
        `KVLayout`.
    beam_idx [1] int32: 0; which row of the batch states go on from.
    past_rows.I [1, Q, W] float32: the latest Q rows of recurrent layer I, zeros before the text
        begins, which present_rows.I returns with those of the pass behind them. conv_taps [T, K]
        int64: which of those, with the pass's behind them, the convolution of each token reads.
    past_state.I [H, N, P] float32: the state of recurrent layer I that has one beside rows, behind
        the first K - 1 of these; present_state.I returns a later one. Other rows before the pass
        are replayed. state_trunk [B], state_levels [2, D, V], state_order [T] int64: see
        `StateWalk`, as for conv_taps, which are of all its steps.
    recurrent_rows [L, Q, W] float32: the rows of L recurrent layers, written in place: that of
        token t lies at t modulo Q. recurrent_past [1] int64: committed tokens.
    states [L, 2, F] float32: states of recurrent layers that have one beside rows, written in
        place. state_place [4] int64: tokens that the state is behind which is read; which of the
        two it is, -1 for zeros; the node behind which a state is written, -1 for the last
        committed token; which of the two it is, -1 for none.
    rope.cos, rope.sin [N, head_size / 2] float32, and others of layers that differ: cosines and
        sines of the angles at each position; query_growth [N, 1], what queries are multiplied by. N
        is more than any position of the pass; OpenVINO's graphs take the rows of their T tokens
        alone. See `PositionTables`. Graphs for one context may hold them instead.
    mtp_rows [F] int64: which of the R rows with logits light heads go on from; see
        `Capabilities.mtp`.
Outputs:
    logits [1, R, V] float32; hidden.I [1, T, hidden_size] float32, the residual stream after I
    layers (where gates are closed, after those that ran); stats.NAME, one of `ROW_STATS`, each
    [R, ...]; mtp.ids [F, D, 8] int64, mtp.log_probs [F, D, 8] float32, likeliest first: what light
    heads say of the second token behind each of these rows, and of those after it.

The encoder of such a model is a graph of its own: of input_ids [1, T] int64, the source, it gives
present.I.key and present.I.value [1, n_kv_heads, T, head_size] float32 of each layer I of the
decoder, the KV rows of the source's tokens.

Graphs of float16 alone take and give float16 for float32, and int32 for int64.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from edgedec.models.errors import ConfigError
from edgedec.models.kv_formats import KVKind, kv_formats_of

INPUT_IDS = "input_ids"
POSITION_IDS = "position_ids"
LOGIT_ROWS = "logit_rows"
PARENTS = "parents"
PAST_LENGTH = "past_length"
SEQUENCES, RING_SEQUENCES = "sequences", "ring_sequences"
ATTENTION_BIAS, SOURCE_BIAS = "attention_bias", "source_bias"
SOURCES = "sources"
ATTENTION_MASK = "attention_mask"
LAYER_GATES = "layer_gates"
ENTRY = "entry"
FEATURES = "features"
BEAM_IDX = "beam_idx"
MTP_ROWS = "mtp_rows"
MTP_IDS, MTP_LOG_PROBS = "mtp.ids", "mtp.log_probs"
K_CACHE, V_CACHE = "k_cache", "v_cache"
K_RING, V_RING = "k_ring", "v_ring"
CONV_TAPS = "conv_taps"
STATE_TRUNK, STATE_LEVELS, STATE_ORDER = "state_trunk", "state_levels", "state_order"
STATE_WALK = (CONV_TAPS, STATE_TRUNK, STATE_LEVELS, STATE_ORDER)
"""Inputs that a `StateWalk` is, in its order."""
RECURRENT_ROWS, RECURRENT_PAST = "recurrent_rows", "recurrent_past"
STATES, STATE_PLACE = "states", "state_place"
LOGITS = "logits"

N_TOP = 8
"""Likeliest tokens that the row statistics list."""

ROW_STATS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "argmax": ("int64", ()),
    "log_sum_exp": ("float32", ()),
    "entropy": ("float32", ()),
    "top_ids": ("int64", (N_TOP,)),
    "top_logits": ("float32", (N_TOP,)),
}
"""Name -> element type, and sizes behind the axis of rows. In the order of the operator's."""

SEQUENCE_FIELDS = 5
"""Numbers of each sequence in `SEQUENCES`."""

MAX_SEQUENCES = 16
"""Sequences that may share a pass of a graph whose KV cache is panels."""

ROUNDING_GAP = 2.0**-23
"""Row gap of graphs that sum in another order for other rows, before any has been seen."""

KV_KINDS: tuple[KVKind, ...] = get_args(KVKind)

ANY_TRIPLE = "any"

ONNX_SUFFIX = ".onnx"
"""What files of ONNX graphs end in."""

WEIGHTS_BESIDE = "weights.bin"
"""File beside a graph that holds its weights."""

BUNDLED_KERNELS = "kernels/libedgedec_kernels.so"
"""File of a bundle that holds edgedec's kernels, for an installation that has none."""

KVPart = Literal["key", "value"]
KV_PARTS: tuple[KVPart, ...] = get_args(KVPart)

_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)")


def hidden_port(layer: int) -> str:
    """Returns the output of the residual stream after ``layer`` layers (0: the embeddings)."""
    return f"hidden.{layer}"


def stats_port(name: str) -> str:
    """Returns the output of the row statistic ``name``, a key of `ROW_STATS`."""
    return f"stats.{name}"


def past_port(layer: int, part: KVPart) -> str:
    """Returns the input of earlier tokens' keys or values of ``layer``."""
    return f"past_key_values.{layer}.{part}"


def present_port(past: str) -> str:
    """Returns the output that carries on the input ``past``."""
    return past.replace("past_key_values", "present", 1)


def rows_port(layer: int) -> str:
    """Returns the input of earlier tokens' rows of the recurrent ``layer``."""
    return f"past_rows.{layer}"


def new_rows_port(layer: int) -> str:
    """Returns the output that carries on `rows_port`."""
    return f"present_rows.{layer}"


def state_port(layer: int) -> str:
    """Returns the input of a state of the recurrent ``layer``."""
    return f"past_state.{layer}"


def new_state_port(layer: int) -> str:
    """Returns the output that carries on `state_port`."""
    return f"present_state.{layer}"


def is_past_port(name: str) -> bool:
    """Says whether ``name`` is an input of earlier tokens' keys or values."""
    return _PAST.fullmatch(name) is not None


def layer_of_past(name: str) -> int:
    """Returns the layer of an input of earlier tokens' keys or values."""
    match = _PAST.fullmatch(name)
    assert match is not None
    return int(match[1])


@dataclass(frozen=True)
class KVLayout:
    """How a graph keeps keys and values.

    kind: ``panels``: two inputs, written in place, of L layers and C positions, a multiple of
        `KV_PANEL`: k_cache and v_cache [L, n_kv_heads, ...], `KVPanels` says what follows.
        ``rows``: inputs and outputs of each layer, copied by each pass. ``states``: in memory of
        the graph's own, of OpenVINO [1, n_kv_heads, P, head_size] under the names that such inputs
        would have.
    format: of the numbers. row_nbytes: bytes of one token, keys and values of all layers.
    block_nbytes: of 16 keys of one head, in the first layer that has some; 0 but for ``panels``.
    ring_layers: layers with a window, rising, that keep the latest tokens only. They are no part of
        the two inputs above but of k_ring and v_ring, made alike of R positions for C, a multiple
        of 2 * `KV_PANEL`: token t lies at position t modulo R. ring_rows: R that most passes can
        do with; one that adds more rows to what it sees before itself needs more.
    recurrent_layers: those that keep a state, rising; most of them keep no keys and values.
    recurrent_rows: rows of each that are kept for most passes.

    Raises:
        ConfigError: These do not go together.
    """

    kind: KVKind
    format: str
    row_nbytes: int
    block_nbytes: int = 0
    ring_layers: tuple[int, ...] = ()
    ring_rows: int = 0
    recurrent_layers: tuple[int, ...] = ()
    recurrent_rows: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KV_KINDS:
            raise ConfigError(f"kv.kind is {self.kind!r}, expected one of {', '.join(KV_KINDS)}")
        if self.format not in (known := kv_formats_of(self.kind)):
            raise ConfigError(f"kv.format is {self.format!r}, expected one of {', '.join(known)}")
        if (self.kind == "panels") != (self.block_nbytes > 0):
            raise ConfigError(
                f"kv.block_nbytes is {self.block_nbytes}, expected more than 0 for panels, 0 else"
            )
        if self.ring_layers and self.kind != "panels":
            raise ConfigError(f"kv.ring_layers are {list(self.ring_layers)}, only panels have them")
        if list(self.ring_layers) != sorted(set(self.ring_layers)):
            raise ConfigError(f"kv.ring_layers are {list(self.ring_layers)}, expected them to rise")
        if bool(self.ring_layers) != (self.ring_rows > 0):
            raise ConfigError(
                f"kv.ring_rows is {self.ring_rows}, expected more than 0 with ring_layers, 0 else"
            )
        if bool(self.recurrent_layers) != (self.recurrent_rows > 0):
            raise ConfigError(
                f"kv.recurrent_rows is {self.recurrent_rows}, expected more than 0 with "
                "recurrent_layers, 0 else"
            )
        if list(self.recurrent_layers) != sorted(set(self.recurrent_layers)):
            raise ConfigError(
                f"kv.recurrent_layers are {list(self.recurrent_layers)}, expected them to rise"
            )


@dataclass(frozen=True)
class Capabilities:
    """What the passes of a graph can do.

    trees: rows may be a tree of drafts; otherwise they follow one another. blocks: rows are tokens
    from anywhere in the text, and each sees all others of its pass and all before it. gates:
    sub-layers may be left out. row_stats: statistics of logits rows come beside them. entry: a pass
    may start at any layer from given hidden states, and may stop after any and return them: closed
    gates pass the residual stream through, so that ``entry`` reaches the first layer that runs, and
    what the last one leaves comes out as hidden.L of L layers. n_sequences: most sequences whose
    rows may share a pass. hidden: layers whose hidden states a whole pass can return, rising.
    features: numbers that a row of a draft head reads beside its token; 0 for models. row_gap: how
    much a logit of a row has been seen to differ with the other rows of the pass; 0 where it
    cannot, or is meant to. mtp: tokens beyond the next one that light heads in the graph name
    (multi-token prediction), each behind the likeliest ones before it; 0 without them. sources:
    texts begin with a source, which an encoder reads; see `source_tokens`.
    """

    trees: bool = False
    blocks: bool = False
    gates: bool = False
    row_stats: bool = False
    entry: bool = False
    n_sequences: int = 1
    hidden: tuple[int, ...] = ()
    features: int = 0
    row_gap: float = 0.0
    mtp: int = 0
    sources: bool = False

    def __post_init__(self) -> None:
        if self.trees and self.blocks:
            raise ConfigError("can.trees and can.blocks are both true, expected one at most")
        if self.row_gap < 0:
            raise ConfigError(f"can.row_gap is {self.row_gap}, expected 0 or more")
        if self.n_sequences < 1:
            raise ConfigError(f"can.n_sequences is {self.n_sequences}, expected 1 or more")


@dataclass(frozen=True)
class GraphContract:
    """What a compiled graph takes, gives and can do.

    compiler: who made the graph. backend: module of `edgedec.runtime.backends` that runs it.
    triple: processor and system its code was compiled for, or ``any``. providers: ONNX Runtime's,
    the first that is there runs it, or devices of OpenVINO, or the one system on a chip of Qualcomm
    that it was compiled for; none for other runtimes. inputs, outputs: names of its ports.

    Raises:
        ConfigError: A port is missing that a capability or the KV layout needs.
    """

    compiler: str
    backend: str
    triple: str
    providers: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    kv: KVLayout
    can: Capabilities

    def __post_init__(self) -> None:
        for key, ports in (("inputs", self.inputs), ("outputs", self.outputs)):
            if len(set(ports)) != len(ports):
                raise ConfigError(f"{key} names a port twice")
        for name in (INPUT_IDS, *self._kv_inputs()):
            self._check(name, self.inputs, "inputs", "every graph")
        for name in (LOGITS, *map(present_port, self.past_ports)):
            self._check(name, self.outputs, "outputs", "every graph")
        if self.can.trees and not {PARENTS, ATTENTION_BIAS} & set(self.inputs):
            self._check(PARENTS, self.inputs, "inputs", "can.trees")
        if self.can.gates:
            self._check(LAYER_GATES, self.inputs, "inputs", "can.gates")
        for name in (LAYER_GATES, ENTRY) if self.can.entry else ():
            self._check(name, self.inputs, "inputs", "can.entry")
        for name in (FEATURES,) if self.can.features else ():
            self._check(name, self.inputs, "inputs", "can.features")
        for name in (MTP_ROWS,) if self.can.mtp else ():
            self._check(name, self.inputs, "inputs", "can.mtp")
        for name in (MTP_IDS, MTP_LOG_PROBS) if self.can.mtp else ():
            self._check(name, self.outputs, "outputs", "can.mtp")
        for layer in self.can.hidden:
            self._check(hidden_port(layer), self.outputs, "outputs", "can.hidden")
        for name in ROW_STATS if self.can.row_stats else ():
            self._check(stats_port(name), self.outputs, "outputs", "can.row_stats")

    @property
    def past_ports(self) -> tuple[str, ...]:
        """The inputs of earlier tokens' keys and values; none where they are panels."""
        return tuple(name for name in self.inputs if is_past_port(name))

    def _kv_inputs(self) -> tuple[str, ...]:
        if self.kv.kind == "panels":
            rings = (RING_SEQUENCES, K_RING, V_RING) if self.kv.ring_layers else ()
            recurrent = (RECURRENT_ROWS, RECURRENT_PAST) if self.kv.recurrent_layers else ()
            return (SEQUENCES, K_CACHE, V_CACHE, *rings, *recurrent)
        if self.kv.kind == "states":
            return ()
        rows = map(rows_port, self.kv.recurrent_layers)
        return (*(self.past_ports or (past_port(0, "key"),)), *rows)

    def _check(self, name: str, ports: tuple[str, ...], key: str, what: str) -> None:
        if name not in ports:
            raise ConfigError(f"{key} lack {name}, which {what} needs")
