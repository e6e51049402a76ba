"""What a compiler states of a graph is what the written graph has."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import edgedec
from edgedec.export.compilers import check_recurrence, compiler_names, find_compiler
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.config import LayerConfig, ModelConfig
from edgedec.models.errors import BundleError, ConfigError, UnsupportedModelError
from edgedec.models.graph import KVLayout
from edgedec.models.kv_formats import KV_PANEL, kv_panels_of
from edgedec.models.model_entry import ModelEntry
from edgedec.models.recurrence import Recurrence, RecurrenceKind
from edgedec.targets import device_target, device_target_names

from ..export.conftest import even_weights

GgufMaker = Callable[..., Path]
OF_OTHERS = ("coreml", "cuda", "qnn")
"""Targets whose graphs are not ONNX, or compiled; their own tests export for them."""

NEEDED = {
    "coreml": "coremltools",
    "cuda": "tvm",
    "openvino": "openvino",
    "qnn": "onnxruntime_qnn",
    "tvm": "tvm",
}
"""Compiler -> package of an extra that not everybody has."""

CASES = [
    (name, kv_format)
    for name in device_target_names()
    if name not in OF_OTHERS
    for kv_format in device_target(name).kv_formats
]


@pytest.mark.parametrize("kind", ["short_conv", "mamba2", "delta"])
@pytest.mark.parametrize("name", compiler_names())
def test_recurrent_layers_are_refused_where_nothing_computes_them(
    make_source: Any, name: str, kind: RecurrenceKind
) -> None:
    if name in NEEDED:
        pytest.importorskip(NEEDED[name])
    sizes = {"n_channels": 8, "n_heads": 2, "head_size": 4, "n_groups": 1, "state_size": 4}
    plain = LayerConfig(8, rope_theta=1e4)
    config = dataclasses.replace(
        make_source().config,
        layers=(plain, dataclasses.replace(plain, mixer="recurrence"), plain),
        recurrence=Recurrence(kind, conv_size=3, **sizes),
    )
    if name in ("fused", "portable"):
        check_recurrence(name, config)
        return
    with pytest.raises(UnsupportedModelError, match=f"{kind}.* the compiler {name} does not have"):
        check_recurrence(name, config)


def ports(graph: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns type and sizes of every input and output."""
    if graph.suffix == ".xml":
        model = (
            pytest.importorskip("openvino").Core().read_model(graph, graph.with_name("weights.bin"))
        )
        return tuple({p.any_name: openvino_elements(p) for p in ports} for ports in
                     (model.inputs, model.outputs))  # fmt: skip
    loaded = onnx.load(graph, load_external_data=False).graph
    both = loaded.input, loaded.output
    inputs, outputs = ({value.name: elements(value) for value in values} for values in both)
    return inputs, outputs


def openvino_elements(port: Any) -> tuple[str, tuple[Any, ...]]:
    """Returns type and sizes of a graph's input or output, by the names of ours that vary."""
    names = iter("R" if port.any_name == "logits" else "T")
    sizes = (n.get_length() if n.is_static else next(names, "?") for n in port.partial_shape)
    return np.dtype(port.element_type.to_dtype()).name, tuple(sizes)


def elements(value: onnx.ValueInfoProto) -> tuple[str, tuple[Any, ...]]:
    """Returns type and sizes of a graph's input or output."""
    tensor = value.type.tensor_type
    sizes = tuple(d.dim_param or d.dim_value for d in tensor.shape.dim)
    return helper.tensor_dtype_to_np_dtype(tensor.elem_type).name, sizes


def nbytes(dtype: str, sizes: tuple[Any, ...]) -> int:
    """Returns the bytes of the sizes that are fixed."""
    fixed = [size for size in sizes if isinstance(size, int)]
    return int(np.dtype(dtype).itemsize * np.prod(fixed, dtype=np.int64))


def check_kv_cache(kv: KVLayout, config: ModelConfig, inputs: dict[str, Any]) -> None:
    """Checks the bytes of a layout against the graph's inputs."""
    if kv.kind == "panels":
        n_heads = config.n_layers * config.n_kv_heads
        (k_type, k), (v_type, v) = inputs["k_cache"], inputs["v_cache"]
        assert nbytes(k_type, k) == n_heads * kv.block_nbytes
        per_panel = KV_PANEL if "capacity" in v else 1
        of_values = nbytes(v_type, v) * per_panel
        assert of_values == n_heads * kv_panels_of(kv.format).block_nbytes(config.head_size)[1]
        assert {k_type, v_type} == {"uint8" if kv.format in ("int8", "k5v4") else kv.format}
        assert kv.row_nbytes == (n_heads * kv.block_nbytes + of_values) // KV_PANEL
        return
    if kv.kind == "states":
        n_numbers = 2 * config.n_layers * config.n_kv_heads * config.head_size
        assert kv.row_nbytes == n_numbers * np.dtype(kv.format).itemsize
        return
    past = [value for name, value in inputs.items() if name.startswith("past_key_values.")]
    assert len(past) == 2 * config.n_layers
    assert {dtype for dtype, _ in past} == {kv.format}
    assert sum(nbytes(*value) for value in past) == kv.row_nbytes


def check_capabilities(entry: ModelEntry, inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    """Checks that a graph has the ports of what it can do, and of nothing else."""
    can = entry.contract.can
    assert can.trees == bool({"parents", "attention_bias"} & set(inputs))
    assert can.gates == ("layer_gates" in inputs)
    assert can.entry == ("entry" in inputs)
    assert (can.n_sequences > 1) == ("sequences" in inputs)
    assert can.row_stats == ("stats.argmax" in outputs)
    hidden = sorted(int(n.removeprefix("hidden.")) for n in outputs if n.startswith("hidden."))
    assert list(can.hidden) == hidden
    for layer in hidden:
        assert outputs[f"hidden.{layer}"] == ("float32", (1, "T", entry.config.hidden_size))
    assert outputs["logits"] == ("float32", (1, "R", entry.config.n_logits))


@pytest.mark.parametrize(("target", "kv_format"), CASES)
def test_the_graph_has_what_its_contract_states(
    make_gguf: GgufMaker, tmp_path: Path, target: str, kv_format: Any
) -> None:
    pytest.importorskip(NEEDED.get(target, "onnx"))
    config = ExportConfig(
        str(make_gguf("qwen2", weights=even_weights(has_bias=kv_format != "k5v4"))), tmp_path / "b",
        device_target=target, hidden_layers=(0, 2), context=32, kv_format=kv_format,
    )  # fmt: skip
    entry = export(config).manifest.target
    contract, device = entry.contract, device_target(target)
    inputs, outputs = ports(tmp_path / "b" / entry.graph)
    assert (tuple(inputs), tuple(outputs)) == (contract.inputs, contract.outputs)
    assert (contract.compiler, contract.kv.format) == (device.compiler, kv_format)
    assert (contract.triple, contract.providers) == (device.triple, device.providers)
    check_capabilities(entry, inputs, outputs)
    check_kv_cache(contract.kv, entry.config, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("target", [*device_target_names(), "tvm"])
def test_a_bundle_holds_no_tables_of_a_million_positions(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    """Tables of this model's whole context would take 33 MB, in the narrowest format."""
    pytest.importorskip(NEEDED.get(target, "onnx"))
    options: dict[str, Any] = {"device_target": target}
    if target == "tvm":
        options = {"compiler": "tvm"}
    elif target == "cuda":
        from edgedec.targets.cuda import export_cuda as cuda

        monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
        monkeypatch.setattr(cuda, "build_fatbin", lambda source, arch, path: path.write_bytes(b"-"))
        options["arch"] = "sm_87"
    elif target == "qnn":
        options["soc"] = "SM8650"
    path = make_gguf(weights=even_weights(), metadata={"llama.context_length": 1 << 20})
    export(ExportConfig(str(path), tmp_path / "b", **options))
    files = [file for file in (tmp_path / "b" / "target").rglob("*") if file.suffix != ".so"]
    sizes = [file.stat().st_size for file in files]
    assert sum(sizes) < 8 << 20


def test_every_compiler_is_found_and_has_a_target() -> None:
    devices = [device_target(name) for name in device_target_names()]
    used = {name for device in devices for name in (device.compiler, *device.other_compilers)}
    assert used == set(compiler_names())
    for name in compiler_names():
        if find_spec(NEEDED.get(name, "onnx")) is None:
            continue
        compiler = find_compiler(name)
        assert compiler.PHASES
        assert compiler.GRAPH_NAME


@pytest.mark.parametrize("name", ["", "os", "..portable", "Fused", "fused\n"])
def test_unknown_compilers_are_named(name: str) -> None:
    with pytest.raises(ConfigError, match="known: coreml, cuda, fused, openvino, ort, portable"):
        find_compiler(name)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ({"triple": "riscv64-linux-gnu"}, "was compiled for riscv64-linux-gnu, this machine is"),
        ({"backend": "quantum"}, "is for the backend quantum, which this edgedec does not have"),
        ({"backend": "kv_cache"}, "is for the backend kv_cache, which this edgedec does not have"),
    ],
)
def test_what_this_machine_does_not_run_is_refused(
    make_gguf: GgufMaker, tmp_path: Path, stated: dict[str, str], message: str
) -> None:
    config = ExportConfig(str(make_gguf("llama")), tmp_path / "b", device_target="portable")
    export(config)
    path = tmp_path / "b" / "manifest.json"
    fields = json.loads(path.read_text())
    fields["models"]["target"]["contract"].update(stated)
    path.write_text(json.dumps(fields))
    with pytest.raises(BundleError, match=message):
        edgedec.load(tmp_path / "b")
