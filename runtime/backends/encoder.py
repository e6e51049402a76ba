"""Encoder-decoder models: the graph that reads a source, beside the one that writes.

What the decoder's layers look at of a source are rows of its tokens, like those of any others, so
they are kept, shared and saved with them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import onnxruntime

from edgedec.kernels import library
from edgedec.models.config import ModelConfig
from edgedec.models.errors import SessionError
from edgedec.models.graph import INPUT_IDS, KV_PARTS, Capabilities, past_port, present_port
from edgedec.models.position_tables import PositionTables
from edgedec.models.source_tokens import is_source, source_ids
from edgedec.runtime.backends.graph_checks import check_names
from edgedec.runtime.backends.ort import PassRunner, open_graph
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.model import Model, SequenceState
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows

Array = npt.NDArray[Any]
SourceRows = Mapping[str, Array]
"""Rows of a source by the names of a graph's inputs, `past_port`: [1, n_kv_heads, T, head_size]."""


class SourceState(SequenceState, Protocol):
    """A state that takes what an encoder made of a source."""

    def take_source(self, rows: SourceRows) -> None:
        """Takes rows as those of the latest pass, which is to be committed."""


class EncoderDecoder:
    """A `Model` of two graphs. Passes over a source run the encoder, all others the decoder."""

    def __init__(self, decoder: Model, encoder: Encoder) -> None:
        self._decoder = decoder
        self._encoder = encoder

    @property
    def vocab_size(self) -> int:
        return self._decoder.vocab_size

    @property
    def n_token_ids(self) -> int:
        return self._decoder.n_token_ids

    @property
    def capabilities(self) -> Capabilities:
        return self._decoder.capabilities

    @property
    def n_layers(self) -> int:
        return self._decoder.n_layers

    @property
    def is_closed(self) -> bool:
        return self._decoder.is_closed

    def new_state(self, context: int) -> SequenceState:
        return self._decoder.new_state(context)

    def compute(self, passes: Sequence[Pass]) -> list[Rows]:
        """Returns the rows of each pass; see `Model`. Those over sources have none.

        Raises:
            SessionError: A source is not the beginning of its text, or not whole.
        """
        reading = {i for i, pass_ in enumerate(passes) if self._is_reading(pass_)}
        written = [pass_ for i, pass_ in enumerate(passes) if i not in reading]
        rows = iter(self._decoder.compute(written) if written else ())
        return [self._read(pass_) if i in reading else next(rows) for i, pass_ in enumerate(passes)]

    def close(self) -> None:
        self._encoder.close()
        self._decoder.close()

    def _is_reading(self, pass_: Pass) -> bool:
        return any(is_source(token, self.vocab_size) for token in pass_.tree.tokens)

    def _read(self, pass_: Pass) -> Rows:
        if pass_.n_past or pass_.logit_rows or not pass_.tree.is_chain:
            raise SessionError(
                f"a pass over a source after {pass_.n_past} tokens asks for "
                f"{len(pass_.logit_rows)} rows of logits, expected none, at the text's beginning"
            )
        rows = self._encoder.read(source_ids(pass_.tree.tokens, self.vocab_size))
        cast(SourceState, pass_.sequence.state).take_source(rows)
        return Rows(np.empty((0, self.vocab_size), np.float32))


class Encoder:
    """The graph of an encoder, opened."""

    def __init__(
        self,
        graph: Path,
        config: ModelConfig,
        providers: Sequence[str],
        threads: int,
        affinity: Affinity,
    ) -> None:
        """Opens it. config: of the decoder. A BundleError where it is none of its encoders."""
        custom_ops = library.library_path() if library.has_library() else None
        self._affinity = affinity
        self._session: onnxruntime.InferenceSession | None = open_graph(
            graph, threads, providers, custom_ops, affinity
        )
        self._outputs = {
            past_port(i, part): present_port(past_port(i, part))
            for i in config.kv_layers
            for part in KV_PARTS
        }
        session = self._session
        self._tables = PositionTables(config, [port.name for port in session.get_inputs()])
        for what, ports, names in (
            ("inputs", session.get_inputs(), (INPUT_IDS, *self._tables.sizes)),
            ("outputs", session.get_outputs(), tuple(self._outputs.values())),
        ):
            check_names(graph, what, [port.name for port in ports], names)

    def read(self, ids: Sequence[int]) -> SourceRows:
        """Returns the rows of a source.

        Raises:
            SessionError: ONNX Runtime refuses, or the model is closed.
        """
        if self._session is None:
            raise SessionError("the model is closed: load the bundle again")
        inputs = {INPUT_IDS: np.array([ids], np.int64), **self._tables.up_to(len(ids))}
        names = list(self._outputs.values())
        with self._affinity.held():
            outputs = PassRunner().run(partial(self._session.run, names, inputs))
        return dict(zip(self._outputs, outputs, strict=True))

    def close(self) -> None:
        """Releases the graph."""
        self._session = None
