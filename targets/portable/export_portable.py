"""Standard ONNX operators with float32 weights: for any ONNX Runtime provider of opset 23."""

from __future__ import annotations

from typing import Any

from edgedec.export.kv_panels import recurrent_rows
from edgedec.export.phases.recipe_model import ENCODER_NAME, RecipeModel
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.emit_encoder import emit_encoder
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.graph import port_names
from edgedec.export.to_onnx.messages import save_model
from edgedec.export.to_onnx.runners import PortableRunner
from edgedec.export.verifying.verify import verification_source
from edgedec.export.weights_file import WEIGHTS_FILE
from edgedec.models.graph import ROUNDING_GAP, Capabilities, GraphContract, KVLayout

RECURRENCES = ("short_conv", "mamba2", "delta")
BLOCKS = True
HAS_ENCODERS = True
GRAPH_NAME = "model.onnx"
WEIGHTS_NAMES = (WEIGHTS_FILE,)

_FLOAT_BYTES = 4


def emit(model: RecipeModel) -> None:
    """The graph of the family's recipe."""
    config = model.source.config
    model.graph = emit_portable(config, model.hidden_layers)
    if config.encoder is not None:
        model.encoder = emit_encoder(config)


def pack(model: RecipeModel) -> None:
    """Weights as the graphs read them, then the graphs, which refer to them."""
    report, encoders = model.report, [] if model.encoder is None else [model.encoder]
    write_weights(
        model.graph,
        model.source,
        model.folder,
        lambda done, n, _: report(done, n),
        also=encoders,
    )
    save_model(model.graph, model.folder / GRAPH_NAME)
    for encoder in encoders:
        save_model(encoder, model.folder / ENCODER_NAME)


PHASES = (("emit", emit), ("pack", pack))


def contract(model: RecipeModel) -> GraphContract:
    """Returns what the graph of ``model`` takes, gives and can do."""
    config, device = model.source.config, model.device
    n_numbers = config.n_kv_numbers
    return GraphContract(
        compiler="portable",
        backend="portable",
        triple=device.triple,
        providers=device.providers,
        inputs=port_names(model.graph.graph.input),
        outputs=port_names(model.graph.graph.output),
        kv=KVLayout(
            "rows",
            model.kv_format,
            row_nbytes=_FLOAT_BYTES * n_numbers,
            recurrent_layers=config.recurrent_layers,
            recurrent_rows=recurrent_rows(config),
        ),
        can=Capabilities(
            trees=not config.is_bidirectional,
            blocks=config.is_bidirectional,
            hidden=model.hidden_layers,
            row_gap=0 if config.is_bidirectional else ROUNDING_GAP,
            sources=config.encoder is not None,
        ),
    )


def open_graph(model: RecipeModel) -> PortableRunner:
    """Returns a way to run the written graph."""
    runner = PortableRunner(model.folder / GRAPH_NAME, model.source.config)
    if model.encoder is not None:
        runner.read_source(model.folder / ENCODER_NAME, verification_source(model.source.config))
    return runner


def measure(model: RecipeModel) -> dict[str, Any]:
    """Returns nothing: there is no more to measure."""
    return {}
