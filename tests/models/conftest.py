"""A small whole bundle, of which nothing can be computed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgedec.models.bundle_files import FileEntry, file_sha256
from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling
from edgedec.models.graph import ROW_STATS, Capabilities, GraphContract, KVLayout, stats_port
from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import ModelEntry

GRAPH, WEIGHTS = "target/model.onnx", "target/weights.bin"
CONTRACT = GraphContract(
    compiler="fused",
    backend="fused",
    triple="any",
    providers=("CPUExecutionProvider",),
    inputs=("input_ids", "parents", "sequences", "k_cache", "v_cache", "layer_gates"),
    outputs=("logits", "hidden.1", *map(stats_port, ROW_STATS)),
    kv=KVLayout("panels", "float16", row_nbytes=32, block_nbytes=128),
    can=Capabilities(trees=True, gates=True, row_stats=True, hidden=(1,)),
)


def make_manifest(folder: Path) -> BundleManifest:
    """Writes a small whole bundle into ``folder`` and returns its manifest."""
    (folder / "target").mkdir(parents=True)
    (folder / GRAPH).write_bytes(b"\x08\x0a\x12\x01x")  # a version and a name
    (folder / WEIGHTS).write_bytes(bytes(range(256)) * 16)
    (folder / "tokenizer.json").write_text("{}")
    paths = (GRAPH, WEIGHTS, "tokenizer.json")
    manifest = BundleManifest(
        schema_version=3,
        name="tiny",
        licence=None,
        edgedec_version="0.1.0",
        device_target="cpu",
        quantization="keep",
        models={
            "target": ModelEntry(
                kind="target",
                graph=GRAPH,
                weights=(WEIGHTS,),
                contract=CONTRACT,
                config=ModelConfig(
                    "llama",
                    10,
                    8,
                    16,
                    2,
                    2,
                    1,
                    4,
                    64,
                    1e-5,
                    rope_scaling=RopeScaling("linear", 2.0),
                    layers=(LayerConfig(16, 1e4), LayerConfig(12, 0.0)),
                ),
                context=64,
                tensor_formats={"embed_tokens.weight": "q4_1"},
            )
        },
        files={p: FileEntry((folder / p).stat().st_size, file_sha256(folder / p)) for p in paths},
        stop_token_ids=(2,),
        opening_token_ids=(),
        template_variables={"bos_token": "<s>", "additional_special_tokens": ("<a>", "<b>")},
        defaults={"method": "plain"},
        verification={"max_abs_error": 0.25},
    )
    (folder / "manifest.json").write_text(json.dumps(manifest.to_dict()))
    return manifest


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny.edgedec"
    make_manifest(folder)
    return folder
