"""Sessions over graphs of standard operators, whose KV cache goes in and comes out of each pass.

Two dialects: edgedec's portable graph takes an additive attention mask, so it runs trees;
graphs of optimum-onnx take a mask of valid positions and run chains only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, SessionError
from edgedec.runtime.backends.ort import NO_GATES, one_line, open_graph
from edgedec.runtime.cores.affinity import Affinity
from edgedec.runtime.sessions.session import Rows, TokenLedger, TokenTree
from edgedec.runtime.sessions.state import SessionState

_MASKED = np.float32(-3.0e38)  # -inf would turn rows without any valid position into NaN
_PAST = re.compile(r"past_key_values\.(\d+)\.(key|value)$")
_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class PortableSession:
    """A `ModelSession` over a portable or optimum graph. Runs everywhere, copies a lot."""

    def __init__(
        self,
        graph: Path,
        config: ModelConfig,
        threads: int,
        context: int,
        affinity: Affinity | None = None,
    ) -> None:
        self._affinity = affinity or Affinity()
        self._session: onnxruntime.InferenceSession | None = open_graph(
            graph, threads, affinity=self._affinity
        )
        inputs = {node.name: node for node in self._session.get_inputs()}
        self._input_names = frozenset(inputs)
        self._output_names = frozenset(node.name for node in self._session.get_outputs())
        self._config = config
        self._ledger = TokenLedger(context)
        # Name of the input -> its rows; after truncate there are more than tokens.
        self._past = {
            name: np.zeros(_empty_shape(node, config), _DTYPES[node.type])
            for name, node in inputs.items()
            if _PAST.match(name)
        }
        if not self._past or "input_ids" not in inputs or "logits" not in self._output_names:
            raise BundleError(
                f"{graph} has inputs {sorted(inputs)[:6]}, expected input_ids and "
                "past_key_values.*: export the model again"
            )
        self._present: dict[str, npt.NDArray[Any]] = {}

    @property
    def tokens(self) -> Sequence[int]:
        """The committed tokens."""
        return self._ledger.tokens

    @property
    def n_tokens(self) -> int:
        return len(self._ledger.tokens)

    @property
    def context(self) -> int:
        return self._ledger.context

    @property
    def vocab_size(self) -> int:
        return self._config.n_logits

    @property
    def nbytes(self) -> int:
        """Bytes of KV cache that committed tokens occupy."""
        return sum(rows[:, :, : self.n_tokens].nbytes for rows in self._past.values())

    @property
    def is_closed(self) -> bool:
        return self._session is None

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
        """Returns the asked rows, in arrays of their own."""
        session = self._session
        if session is None:
            raise SessionError("the session is closed: load the bundle again")
        if layer_gates is not None:
            raise SessionError(NO_GATES)
        self._ledger.check_room(tree)
        self._ledger.check_known(tree, n_known)
        self._ledger.pending = None
        logit_rows = [row - n_known for row in logit_rows]
        presents = {name: name.replace("past_key_values", "present") for name in self._past}
        hidden = [f"hidden.{layer}" for layer in hidden_layers]
        outputs = ["logits", *hidden, *presents.values()]
        try:
            with self._affinity.held():
                values = session.run(outputs, self._inputs(tree, n_known, logit_rows))
        except Exception as error:
            raise SessionError(f"ONNX Runtime could not run the model: {one_line(error)}") from None
        results = dict(zip(outputs, values, strict=True))
        self._present = {name: results[present] for name, present in presents.items()}
        self._ledger.pending = tree
        logits = results["logits"][0].astype(np.float32, copy=False)
        if "logit_rows" not in self._input_names:
            logits = logits[list(logit_rows)]
        return Rows(logits, {i: results[f"hidden.{i}"][0] for i in hidden_layers})

    def commit(self, path: Sequence[int]) -> None:
        """Keeps the rows of ``path``."""
        tree = self._ledger.check_path(path)
        n_past = self.n_tokens
        if len(path) != len(tree) or not tree.is_chain:
            kept = [*range(n_past), *(n_past + i for i in path)]
            self._present = {name: rows[:, :, kept] for name, rows in self._present.items()}
        self._past = self._present
        self._ledger.accept(tree, path)

    def truncate(self, n_tokens: int) -> None:
        """Forgets every committed token after the first ``n_tokens``."""
        self._ledger.check_truncate(n_tokens)
        self._ledger.truncate(n_tokens)

    def snapshot(self, n_tokens: int | None = None, start: int = 0) -> SessionState:
        """Returns copies of the rows of tokens ``start`` to ``n_tokens``; to the last when None."""
        n_tokens = self._ledger.check_snapshot(n_tokens, start)
        kv_rows = {name: rows[:, :, start:n_tokens].copy() for name, rows in self._past.items()}
        return SessionState(tuple(self.tokens[:n_tokens]), start, kv_rows)

    def restore(self, state: SessionState) -> None:
        """Makes the tokens of ``state`` the committed ones, as if they had been computed."""
        if self._session is None:
            raise SessionError("the session is closed: load the bundle again")
        self._ledger.check_state(state, self.snapshot(0).layout, self._config.vocab_size)
        self._ledger.truncate(state.start)  # an interrupt must not leave tokens with others' rows
        self._past = {
            name: np.concatenate([rows[:, :, : state.start], state.kv_rows[name]], axis=2)
            for name, rows in self._past.items()
        }
        self._ledger.tokens.extend(state.tokens[state.start :])

    def close(self) -> None:
        """Releases the model and its KV cache."""
        self._session = None
        self._past, self._present = {}, {}
        self._ledger.truncate(0)

    def _inputs(
        self, tree: TokenTree, n_known: int, logit_rows: Sequence[int]
    ) -> dict[str, npt.NDArray[Any]]:
        n_past, n_tokens = self.n_tokens, len(tree)
        source = self._present if n_known else self._past
        inputs: dict[str, npt.NDArray[Any]] = {
            name: np.ascontiguousarray(rows[:, :, : n_past + n_known])
            for name, rows in source.items()
        }
        inputs["input_ids"] = np.array([tree.tokens[n_known:]], np.int64)
        if "position_ids" in self._input_names:
            inputs["position_ids"] = n_past + np.array([tree.depths[n_known:]], np.int64)
        if "logit_rows" in self._input_names:
            inputs["logit_rows"] = np.array(logit_rows, np.int64)
        if "attention_bias" in self._input_names:
            inputs["attention_bias"] = _attention_bias(tree, n_past)[:, :, n_known:]
        elif not tree.is_chain:
            raise SessionError(
                "this bundle's graph cannot run a tree of drafts: use a chain, or export with "
                "edgedec's own graph"
            )
        if "attention_mask" in self._input_names:
            inputs["attention_mask"] = np.ones((1, n_past + n_tokens), np.int64)
        return inputs


def _attention_bias(tree: TokenTree, n_past: int) -> npt.NDArray[np.float32]:
    """Returns what is added to attention scores. Shapes: [1, 1, T, n_past + T] float32."""
    n_tokens = len(tree)
    bias = np.zeros((1, 1, n_tokens, n_past + n_tokens), np.float32)
    bias[0, 0, :, n_past:][~tree.ancestry()] = _MASKED
    return bias


def _empty_shape(node: Any, config: ModelConfig) -> tuple[int, int, int, int]:
    """Returns the shape of a KV input before any token; the graph's own sizes come first."""
    n_heads, head_size = node.shape[1], node.shape[3]
    return (
        1,
        n_heads if isinstance(n_heads, int) else config.n_kv_heads,
        0,
        head_size if isinstance(head_size, int) else config.head_size,
    )
