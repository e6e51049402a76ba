"""Writes anew the whole inputs of edgedec's own formats, which fuzzing starts from.

Those of other formats stay as they are in `corpus/`.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import readers
from fuzz_readers import CORPUS

from edgedec.models.bundle_files import FileEntry
from edgedec.models.config import LayerConfig, ModelConfig, RopeScaling
from edgedec.models.graph import ROW_STATS, Capabilities, GraphContract, KVLayout, stats_port
from edgedec.models.manifest import SCHEMA_VERSION, BundleManifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore

CONFIG = ModelConfig("llama", 8, 32, 32, 1, 2, 1, 16, 64, 1e-5)


def bundle(is_panels: bool) -> bytes:
    """Returns manifest.json and generation_config.json of a whole bundle."""
    settings = b'{"do_sample": true, "temperature": 0.5, "top_k": 5}'
    files = {**readers.BUNDLE_FILES, "generation_config.json": settings}
    contract = GraphContract(
        compiler="fused", backend="fused", triple="any", providers=("CPUExecutionProvider",),
        inputs=(
            "input_ids", "position_ids", "parents", "sequences", "logit_rows", "k_cache", "v_cache",
            "layer_gates",
        ),
        outputs=("logits", "hidden.1", *map(stats_port, ROW_STATS)),
        kv=KVLayout("panels", "float16", row_nbytes=32, block_nbytes=128),
        can=Capabilities(trees=True, gates=True, row_stats=True, hidden=(1,)),
    )  # fmt: skip
    if not is_panels:
        past = ("past_key_values.0.key", "past_key_values.0.value")
        present = tuple(name.replace("past_key_values", "present") for name in past)
        contract = replace(
            contract, inputs=("input_ids", "position_ids", *past), outputs=("logits", *present),
            kv=KVLayout("rows", "float32", 64), can=Capabilities(),
        )  # fmt: skip
    entry = ModelEntry(
        kind="target", graph="target/model.onnx", weights=("target/weights.bin",),
        contract=contract,
        config=replace(
            CONFIG, rope_scaling=RopeScaling("linear", 2.0), layers=(LayerConfig(16, 1e4),)
        ),
        context=64, tensor_formats={"embed_tokens.weight": "q4_1"},
    )  # fmt: skip
    manifest = BundleManifest(
        schema_version=SCHEMA_VERSION, name="tiny", licence=None, edgedec_version="0.1.0",
        device_target="cpu", quantization="keep", models={"target": entry},
        files={
            name: FileEntry(len(content), hashlib.sha256(content).hexdigest())
            for name, content in files.items()
        },
        stop_token_ids=(2,), opening_token_ids=(1,),
        template_variables={"bos_token": "<s>"}, defaults={"method": "plain"},
        verification={"max_abs_error": 0.25},
    )  # fmt: skip
    return readers.SEPARATOR.join([json.dumps(manifest.to_dict()).encode(), settings])


def store(n_tokens: int) -> bytes:
    """Returns a store of one long text; its checksums are mended."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "seed.ngrams")
        made = NgramStore.open(path, readers.STORE_OF, 1 << 14)
        made.add([i % 9 for i in range(n_tokens)])
        return b"\3" + path.read_bytes()


def session() -> bytes:
    """Returns the header of a session, and its rows."""
    rows = {
        "keys": {"dtype": "<f2", "shape": [1, 2, 3, 2]},
        "values": {"dtype": "|i1", "shape": [1, 2, 3, 2]},
    }
    model = {"fingerprint": "aim", "tokens": [5, 6, 7], "kv_rows": rows}
    header = {"models": {"target": model}, "payload_sha256": "0" * 64}
    return json.dumps(header).encode() + readers.SEPARATOR + bytes(2 * readers.PAGE)


def seeds() -> dict[str, dict[str, bytes]]:
    """Returns whole inputs by reader and name."""
    whole = session()
    header, _, rows = whole.partition(readers.SEPARATOR)
    return {
        "bundle": {"panels": bundle(True), "rows": bundle(False)},
        "store": {"short": store(20), "blocks": store(1100)},
        "session": {"parts": whole, "file": readers._session_of(header, rows)},
    }


if __name__ == "__main__":
    for reader, inputs in seeds().items():
        for name, content in inputs.items():
            (CORPUS / reader / name).write_bytes(content)
