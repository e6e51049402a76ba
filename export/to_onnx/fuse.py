"""The fused graph: the portable graph after every pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from edgedec.export.to_onnx.messages import ModelProto
from edgedec.export.to_onnx.passes import encoder_pipeline, pipeline
from edgedec.models.config import ModelConfig
from edgedec.models.quant import QuantFormat

Dump = Callable[[str, ModelProto], None]


def fuse(
    model: ModelProto,
    config: ModelConfig,
    formats: Mapping[str, QuantFormat],
    dump: Dump | None = None,
    kv_format: str = "float16",
) -> ModelProto:
    """Returns the fused graph of the portable graph ``model``, which is left as it is.

    Args:
        formats: storage format of every matrix, by weight name.
        dump: called with a file stem (``00_portable``, ``01_pack_matrices``, ...) and the graph
            at that stage; the graph is edited further afterwards.
        kv_format: of the KV cache.
    """
    fused = ModelProto()
    fused.CopyFrom(model)
    if dump:
        dump("00_portable", fused)
    for index, (name, run) in enumerate(pipeline(config, formats, kv_format), start=1):
        run(fused)
        if dump:
            dump(f"{index:02}_{name}", fused)
    return fused


def fuse_encoder(model: ModelProto, formats: Mapping[str, QuantFormat]) -> ModelProto:
    """Returns the fused graph of the portable graph of an encoder, which is left as it is."""
    fused = ModelProto()
    fused.CopyFrom(model)
    for _, run in encoder_pipeline(formats):
        run(fused)
    return fused
