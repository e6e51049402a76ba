"""Every stage between the portable and the fused graph: loadable, and the same logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.export.quantising.quantise import Quantized
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.graph import attributes, op_counts
from edgedec.export.to_onnx.linear_node import LinearNode
from edgedec.export.to_onnx.messages import ModelProto
from edgedec.export.to_onnx.passes import pipeline
from edgedec.export.to_onnx.runners import FusedRunner, PortableRunner
from edgedec.export.verifying.verify import compare_logits
from edgedec.kernels.library import has_library
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import weight_shapes
from edgedec.models.reference import ReferenceModel

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5]
CONTEXT = 64
FAMILIES = [
    pytest.param({}, id="llama"),
    pytest.param({"family": "qwen2", "has_qkv_bias": True, "is_head_tied": True}, id="qwen2_tied"),
    pytest.param({"family": "qwen3", "has_qk_norm": True}, id="qwen3"),
]
MIXTURE = {"family": "qwen3_moe", "has_qk_norm": True, "n_experts": 5, "n_experts_used": 2}

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]


def formats_of(source: Any) -> dict[str, Any]:
    shapes = weight_shapes(source.config)
    return {name: source.format(name) for name, shape in shapes.items() if len(shape) == 2}


def fused_graph(source: Any, hidden_layers: tuple[int, ...] = ()) -> ModelProto:
    portable = emit_portable(source.config, hidden_layers)
    return fuse(portable, source.config, formats_of(source))


def stages(source: Any, hidden_layers: tuple[int, ...] = ()) -> dict[str, ModelProto]:
    found = {}

    def keep(stem: str, model: ModelProto) -> None:
        found[stem] = ModelProto()
        found[stem].CopyFrom(model)

    portable = emit_portable(source.config, hidden_layers)
    fuse(portable, source.config, formats_of(source), keep)
    return found


def runner_of(model: ModelProto, path: Any, source: Any) -> Any:
    if any(value.name == "k_cache" for value in model.graph.input):
        return FusedRunner(path, source.config, CONTEXT)
    return PortableRunner(path, source.config)


@pytest.mark.parametrize("fields", [*FAMILIES, pytest.param(MIXTURE, id="qwen3_moe")])
def test_every_stage_computes_the_same(
    make_source: Any, write_graph: Any, fields: dict[str, Any]
) -> None:
    source = make_source(**fields)
    expected = ReferenceModel(source).forward(TOKENS).logits
    for stem, model in stages(source, hidden_layers=(1, 3)).items():
        runner = runner_of(model, write_graph(model, source), source)
        is_fused = isinstance(runner, FusedRunner)
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        # The fused KV cache is float16: 11 bits of every key and value.
        np.testing.assert_allclose(logits, expected, atol=1e-2 if is_fused else 1e-5, err_msg=stem)


def test_stages_are_named_after_the_passes(make_source: Any) -> None:
    source = make_source()
    names = [name for name, _ in pipeline(source.config, formats_of(source))]
    expected = ["00_portable", *(f"{i:02}_{name}" for i, name in enumerate(names, start=1))]
    assert list(stages(source)) == expected


@pytest.mark.parametrize("fields", FAMILIES)
def test_fused_operators_per_layer(make_source: Any, fields: dict[str, Any]) -> None:
    source = make_source(**fields)
    model = fused_graph(source)
    n_layers = source.config.n_layers
    expected = {
        "Embed": 1, "Linear": 4 * n_layers + 1, "Attention": n_layers, "Gather": 1,
        "RowStats": 1, "Concat": 1,
    }  # fmt: skip
    if source.config.has_qk_norm:
        expected["HeadNorm"] = n_layers
    assert op_counts(model) == expected
    linears = [LinearNode.read(node) for node in model.graph.node if node.op_type == "Linear"]
    by_weight = {linear.matrices[0].weight: linear for linear in linears}
    for i in range(n_layers):
        qkv = by_weight[f"layers.{i}.self_attn.q_proj.weight"]
        o = by_weight[f"layers.{i}.self_attn.o_proj.weight"]
        gate = by_weight[f"layers.{i}.mlp.gate_proj.weight"]
        down = by_weight[f"layers.{i}.mlp.down_proj.weight"]
        assert [len(part.matrices) for part in (qkv, o, gate, down)] == [3, 1, 2, 1]
        assert qkv.norm_weight == f"layers.{i}.input_layernorm.weight"
        assert gate.norm_weight == f"layers.{i}.post_attention_layernorm.weight"
        assert [m.bias != "" for m in qkv.matrices] == [source.config.has_qkv_bias] * 3
        assert gate.is_gated
        assert (o.residual, down.residual) == (qkv.x, gate.x)
        assert gate.x == o.output


@pytest.mark.parametrize("fields", FAMILIES)
def test_layer_gates(make_source: Any, fields: dict[str, Any]) -> None:
    source = make_source(**fields)
    model = fused_graph(source)
    found: dict[int, list[str]] = {}
    for node in model.graph.node:
        gate_index = attributes(node).get("gate_index", -1)
        assert ("layer_gates" in node.input) == (gate_index >= 0)
        found.setdefault(gate_index, []).append(node.op_type)
    n_layers = source.config.n_layers
    n_norms = n_layers * source.config.has_qk_norm
    assert sorted(found.pop(-1)) == sorted(
        ["Embed", "Concat", *["HeadNorm"] * n_norms, "Gather", "Linear", "RowStats"]
    )
    assert found == {
        2 * i + half: ops
        for i in range(n_layers)
        for half, ops in enumerate((["Linear", "Attention", "Linear"], ["Linear", "Linear"]))
    }
    linears = [LinearNode.read(node) for node in model.graph.node if node.op_type == "Linear"]
    assert all(LinearNode.read(linear.write()) == linear for linear in linears)
    # A sub-layer that is left out must pass the residual stream on.
    assert len([linear for linear in linears if linear.residual]) == 2 * n_layers


@pytest.mark.parametrize("is_normed", [True, False])
def test_a_mixture_of_experts_is_one_node(make_source: Any, is_normed: bool) -> None:
    source = make_source(**MIXTURE, is_routing_normed=is_normed)
    model = fused_graph(source)
    n_layers, shapes = source.config.n_layers, {t.name: t.dims for t in model.graph.initializer}
    assert op_counts(model) == {
        "Embed": 1, "Linear": 3 * n_layers + 1, "HeadNorm": n_layers, "Attention": n_layers,
        "Experts": n_layers, "Gather": 1, "RowStats": 1, "Concat": 1,
    }  # fmt: skip
    for i, node in enumerate(node for node in model.graph.node if node.op_type == "Experts"):
        stem, facts = f"layers.{i}.mlp", attributes(node)
        x, norm, residual, router, *matrices, gates = node.input
        assert x == residual
        assert norm == f"layers.{i}.post_attention_layernorm.weight"
        assert matrices == [f"{stem}.experts.{part}_proj.weight" for part in ("gate", "up", "down")]
        assert [len(shapes[name]) for name in matrices] == [2, 2, 2]
        assert (facts["n_experts"], facts["n_used"], facts["normed"]) == (5, 2, int(is_normed))
        assert (gates, facts["gate_index"]) == ("layer_gates", 2 * i + 1)
        (scores,) = (n for n in model.graph.node if n.output[0] == router)
        found = LinearNode.read(scores)
        assert (found.x, found.norm_weight, found.gate_index) == (x, norm, 2 * i + 1)


def test_a_mixture_of_another_activation_is_refused(make_source: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.mlp\.router leaves unwritten"):
        fused_graph(make_source(**MIXTURE, activation="gelu_tanh"))


def test_tied_head_is_one_tensor(make_source: Any) -> None:
    model = fused_graph(make_source(is_head_tied=True))
    names = [tensor.name for tensor in model.graph.initializer]
    assert len(names) == len(set(names))
    assert "lm_head.weight" not in names
    readers = [node.op_type for node in model.graph.node if "embed_tokens.weight" in node.input]
    assert sorted(readers) == ["Embed", "Linear"]


def test_portable_graph_is_left_as_it_is(make_source: Any) -> None:
    source = make_source()
    portable = emit_portable(source.config)
    before = portable.SerializeToString(deterministic=True)
    fuse(portable, source.config, formats_of(source))
    assert portable.SerializeToString(deterministic=True) == before


def test_fused_interface(make_source: Any) -> None:
    model = fused_graph(make_source(), hidden_layers=(0, 3))
    assert [value.name for value in model.graph.input] == [
        "input_ids", "position_ids", "logit_rows", "rope.cos", "rope.sin", "parents", "sequences",
        "k_cache", "v_cache", "layer_gates", "entry",
    ]  # fmt: skip
    assert sorted(value.name for value in model.graph.output) == [
        "hidden.0", "hidden.3", "logits", "stats.argmax", "stats.entropy", "stats.log_sum_exp",
        "stats.top_ids", "stats.top_logits",
    ]  # fmt: skip


def test_fused_rows_of_trees_and_continuations_are_bit_identical(
    make_source: Any, write_graph: Any
) -> None:
    source = make_source()
    runner = FusedRunner(write_graph(fused_graph(source), source), source.config, CONTEXT)
    whole = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
    for start in range(1, len(TOKENS)):
        alone = runner.compute_logits(TOKENS[start : start + 1], [-1], n_past=start)
        np.testing.assert_array_equal(alone[0], whole[start])
    tree = runner.compute_logits([1, TOKENS[4], 2, TOKENS[5]], [-1, -1, 1, 1], n_past=4)
    np.testing.assert_array_equal(tree[[1, 3]], whole[4:6])


@pytest.mark.parametrize("scheme", ["int8", "int8-min", "int4", "int4-min"])
def test_quantised_weights(make_source: Any, write_graph: Any, scheme: str) -> None:
    source = Quantized(make_source(hidden_size=64, head_size=16, is_head_tied=True), scheme)
    runner = FusedRunner(write_graph(fused_graph(source), source), source.config, CONTEXT)
    logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
    found = compare_logits(logits, ReferenceModel(source).forward(TOKENS).logits)
    # Activations are rounded to 8 bits; the weights are the same on both sides.
    assert found["kl_nats"] < 2e-3
    assert found["max_abs_error"] < 0.15 * found["logit_std"]
