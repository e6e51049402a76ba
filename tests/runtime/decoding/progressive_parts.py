"""A tiny model with KV maps, and maps that mislead, for tests of progressive prefill."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.models.families import weight_shapes
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.progressive import OwnLayers
from edgedec.runtime.decoding.strategy import DecodeState, DecodingStrategy
from edgedec.runtime.engine.request import Request
from edgedec.runtime.engine.scheduler import Scheduler
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.sequences.model import KVPredictor
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.text.text_stream import TextStream
from edgedec.targets.cpu.run_kv_maps import FusedKVMaps
from edgedec.training.kv_maps.fit_maps import Fitted, fit
from edgedec.training.kv_maps.kv_maps import write_kv_maps
from edgedec.training.kv_maps.kv_progress import CorpusWindows

from ..conftest import OnePool
from ..draft_toys import Numerals

CONTEXT, DEPTH, N_LAYERS = 448, 1, 5
PROMPT = [int(t) for t in np.random.default_rng(11).integers(0, 83, 301)]


class Misled:
    """Predicts whatever, so that provisional tokens do not hold."""

    def __init__(self, maps: FusedKVMaps) -> None:
        self._maps = maps
        self.depth, self.hidden_size = maps.depth, maps.hidden_size

    def write(self, cache: Any, start: int, hidden: Any) -> None:
        one = np.random.default_rng(1).standard_normal((1, self.hidden_size))
        self._maps.write(cache, start, np.repeat(one.astype(np.float32), len(hidden), axis=0))


class Parts:
    """A tiny model with maps fitted to it."""

    def __init__(self, folder: Path, source: Any, kv_format: Any) -> None:
        config = self.config = source.config
        shapes = weight_shapes(config)
        formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
        portable = emit_portable(config, (N_LAYERS,))
        graph = fuse(portable, config, formats, kv_format=kv_format)
        write_weights(graph, source, folder)
        save_model(graph, folder / "model.onnx")
        self.source, self.model = source, open_graph_model(folder / "model.onnx", config, 2)
        rng = np.random.default_rng(3)
        windows = [[int(t) for t in rng.integers(0, 83, 200)] for _ in range(12)]
        self.fitted: Fitted = fit(self.sequence(), config, DEPTH, CorpusWindows(windows))
        name, _ = write_kv_maps(folder, "maps", config, kv_format, self.fitted.maps)
        self.maps = FusedKVMaps(
            folder / name, DEPTH, config.hidden_size, 2, ("CPUExecutionProvider",)
        )
        self.predictor: KVPredictor = self.maps

    def sequence(self) -> TokenSequence:
        return TokenSequence(self.model, CONTEXT)

    def stream(
        self,
        sequence: TokenSequence,
        config: GenerationConfig,
        strategy: DecodingStrategy | None = None,
        prompt: list[int] | None = None,
        on_progress: Progress | None = None,
    ) -> Stream:
        stops = frozenset(config.stop_token_ids)
        state = DecodeState.start(sequence, prompt or PROMPT, config, stops, None)
        request = Request(
            strategy or Plain(), time.perf_counter(), 0.0, OnePool(sequence), Scheduler(),
            new_text=lambda: TextStream(Numerals(), config.stop),
            predictor=lambda: OwnLayers(self.predictor),
            on_progress=on_progress,
        )  # fmt: skip
        return Stream(request, state, TextStream(Numerals(), config.stop))

    def run(self, mode: str, strategy: DecodingStrategy | None = None, **asked: Any) -> Any:
        """Returns the result of a request on a fresh sequence, and the pieces of its text."""
        config = GenerationConfig(**{"max_new_tokens": 24, **asked}, prefill=mode)
        stream = self.stream(self.sequence(), config, strategy)
        pieces = list(stream.pieces)
        return stream.result, pieces
