"""Two tiny models, and maps between them, for tests of what is predicted from model to model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from graph_models import open_graph_model

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.models.families import weight_shapes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.cpu.run_kv_maps import FusedKVMaps
from edgedec.training.kv_maps.kv_maps import write_kv_maps
from edgedec.training.kv_maps.kv_progress import CorpusWindows
from edgedec.training.kv_maps.model_kv import ModelFitted, Reader, fit_model

CONTEXT, VOCAB = 320, 83
PROMPT = [int(t) for t in np.random.default_rng(11).integers(0, VOCAB, 200)]


class Pair:
    """Two tiny models, and maps from what the first keeps of a text to what the second does.

    configs, models: of both.
    """

    def __init__(self, folder: Path, sources: list[Any], kv_format: Any) -> None:
        self.configs = [source.config for source in sources]
        self.models = []
        for i, source in enumerate(sources):
            own = folder / str(i)
            own.mkdir()
            config = source.config
            shapes = weight_shapes(config)
            formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
            graph = fuse(emit_portable(config), config, formats, kv_format=kv_format)
            write_weights(graph, source, own)
            save_model(graph, own / "model.onnx")
            self.models.append(open_graph_model(own / "model.onnx", config, 2))
        rng = np.random.default_rng(3)
        windows = [[int(t) for t in rng.integers(0, VOCAB, 200)] for _ in range(12)]
        self.fitted: ModelFitted = fit_model(*self.readers(), CorpusWindows(windows))
        target, draft = self.configs
        name, _ = write_kv_maps(
            folder, "maps", draft, kv_format, self.fitted.maps, self.fitted.scales
        )
        width = 2 * target.n_layers * target.n_kv_heads * target.head_size
        self.maps = FusedKVMaps(folder / name, 0, width, 2, ("CPUExecutionProvider",))

    def sequence(self, i: int) -> TokenSequence:
        return TokenSequence(self.models[i], CONTEXT)

    def readers(self) -> list[Reader]:
        return [Reader(self.sequence(i), config) for i, config in enumerate(self.configs)]


def read(sequence: TokenSequence, tokens: list[int]) -> TokenSequence:
    """Returns ``sequence`` with ``tokens`` computed behind its own."""
    sequence.forward(TokenTree.chain(tokens), ())
    sequence.commit(range(len(tokens)))
    return sequence
