"""Rows of several sequences in one pass: the bits that each has alone, whatever shares the pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from graph_models import add_random_offsets, contract_of

from edgedec import EngineOptions, load
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import save_model
from edgedec.kernels import cpu, library
from edgedec.models.config import LayerConfig
from edgedec.models.families import weight_shapes
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.sequences.passes import Pass, compute
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.cpu.run_fused import FusedModel

from ..isas import ISAS, isa_params
from ..shared_passes import check_random_mixes, check_same

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not library.has_library(), reason="the kernel library is not built"),
]

CONTEXT = 700
WINDOWS = tuple(LayerConfig(48, 1e4, window=window) for window in (24, 0, 17))
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "float16": ("float16", {}),
    "int8": ("int8", {}),
    "windows": ("float16", {"head_size": 20, "layers": WINDOWS}),
    "windows, int8": ("int8", {"head_size": 20, "layers": WINDOWS}),
    "windows, k5v4, key offsets": ("k5v4", {"head_size": 20, "layers": WINDOWS}),
    "experts": ("float16", {"n_experts": 4, "n_experts_used": 2}),
}
Open = Callable[[int], FusedModel]


@pytest.fixture(params=MODELS)
def open_model(request: pytest.FixtureRequest, make_source: Any, tmp_path: Path) -> Open:
    """Returns a maker of tiny models with random weights."""
    kv_format, fields = MODELS[request.param]
    source = make_source(max_positions=4000, **fields)
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, s in shapes.items() if len(s) == 2}
    portable = emit_portable(source.config, (1, source.config.n_layers))
    graph = fuse(portable, source.config, formats, kv_format=kv_format)
    if "offsets" in request.param:
        add_random_offsets(graph, source.config)
    write_weights(graph, source, tmp_path)
    save_model(graph, tmp_path / "model.onnx")

    def make(threads: int) -> FusedModel:
        contract = contract_of(tmp_path / "model.onnx", source.config)
        if contract.kv.ring_layers:  # small enough to go round, and to grow
            contract = replace(contract, kv=replace(contract.kv, ring_rows=352))
        return FusedModel(GraphToRun(tmp_path / "model.onnx", source.config, contract, threads))

    return make


@pytest.mark.parametrize("isa", cpu.available_isas() if library.has_library() else [])
def test_random_mixes(open_model: Open, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", isa)
    compute_together, n_together = FusedModel.compute_together, list[int]()

    def counting(model: FusedModel, passes: Sequence[Pass]) -> list[Rows]:
        n_together.append(len(passes))
        return compute_together(model, passes)

    monkeypatch.setattr(FusedModel, "compute_together", counting)
    for seed in range(2):
        check_random_mixes(open_model(1 + seed), seed, n_rounds=8)
    assert sum(n_together) > 30


def test_passes_that_cannot_be_one_are_computed_all_the_same(open_model: Open) -> None:
    """One leaves sub-layers out, one stops early, two share a pass."""
    model = open_model(2)
    chain = TokenTree.chain([1, 2, 3])
    asked = [{}, {"layer_gates": [True, False] * model.n_layers}, {"layers": range(1)}, {}]
    if not model.capabilities.entry:
        asked[2] = {}
    sequences = [TokenSequence(model, CONTEXT) for _ in asked]
    rows = compute([
        Pass(sequence, chain, (0, 2), **fields)
        for sequence, fields in zip(sequences, asked, strict=True)
    ])  # fmt: skip
    for fields, found in zip(asked, rows, strict=True):
        alone = TokenSequence(model, CONTEXT)
        check_same(found, alone.run(Pass(alone, chain, (0, 2), **fields)))


def test_more_texts_than_share_memory(open_model: Open) -> None:
    model = open_model(2)
    sequences = [TokenSequence(model, CONTEXT) for _ in range(19)]
    chain = TokenTree.chain([5, 6])
    alone = sequences[0].forward(chain, (1,)).copy()
    for found in compute([Pass(sequence, chain, (1,)) for sequence in sequences]):
        check_same(found, alone)


@pytest.mark.slow
@pytest.mark.parametrize("isa", isa_params(ISAS[:3]))
def test_a_real_model(smollm2_bundle: Path, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", isa)
    with load(smollm2_bundle, EngineOptions(threads=2)) as engine:
        assert cpu.active_isa() == isa
        check_random_mixes(engine.model, 5, n_rounds=4, n_texts=8)
