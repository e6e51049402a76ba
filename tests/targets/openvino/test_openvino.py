"""Bundles for OpenVINO: weights stay compressed, devices, passes that fail or are ended."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import edgedec
from edgedec import BundleError, ConfigError, EngineOptions, SessionError
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.config import ModelConfig
from edgedec.models.graph import past_port, present_port
from edgedec.models.manifest import read_manifest
from edgedec.models.position_tables import PositionTables
from edgedec.models.reference import ReferenceModel
from edgedec.models.static_passes import BUCKETS, StaticPass
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.backends.static_cache import parts_of
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.targets.openvino.target import DEVICE

ov = pytest.importorskip("openvino")

from edgedec.targets.openvino.run_graph import check_ports, read_graph  # noqa: E402
from edgedec.targets.openvino.run_static import static_graph  # noqa: E402

GgufMaker = Callable[..., Path]
TOKENS = [7, 200, 31, 31, 8, 150, 99, 4, 260, 61]
TYPES = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"]
CODES = {"Q4_0": "i4", "Q4_1": "u4", "Q5_1": "u8", "Q8_0": "i8", "Q4_K": "u4", "Q6_K": "i8"}


def exported(gguf: Path, path: Path, **options: Any) -> Path:
    """Returns the folder of the model in a new bundle."""
    export(ExportConfig(str(gguf), path, device_target="openvino", context=128, **options))
    return path / "target"


def compiled(folder: Path, **properties: Any) -> Any:
    """Returns a graph compiled for the CPU."""
    core = ov.Core()
    model = core.read_model(folder / "model.xml", folder / "weights.bin")
    return core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **properties})


@pytest.fixture(scope="module")
def bundle(smooth_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(smooth_gguf, tmp_path_factory.mktemp("openvino") / "b").parent


def gap(bundle: Path) -> float:
    """Returns what logits of two ways to compute a text may differ by."""
    return 4 * read_manifest(bundle).target.contract.can.row_gap


def as_chain(sequence: TokenSequence, tokens: list[int]) -> Any:
    """Returns the logits after a text that is computed anew."""
    sequence.truncate(0)
    rows = sequence.forward(TokenTree.chain(tokens), [len(tokens) - 1])
    sequence.commit(range(len(tokens)))
    return rows.logits[0].copy()


@pytest.mark.parametrize("type_name", TYPES)
def test_logits_are_those_of_the_checkpoint(
    make_gguf: GgufMaker, tmp_path: Path, type_name: str
) -> None:
    """Without rounded activations nothing but sums in another order is left."""
    path = make_gguf("qwen2", type_name)
    request = compiled(
        exported(path, tmp_path / "b"), DYNAMIC_QUANTIZATION_GROUP_SIZE=0, KV_CACHE_PRECISION="f32"
    ).create_infer_request()
    n, source = len(TOKENS), open_checkpoint(str(path))
    logits = request.infer({
        **PositionTables(source.config, ("rope.cos", "rope.sin")).rows_at(np.arange(n)),
        "input_ids": np.array([TOKENS], np.int64),
        "logit_rows": np.arange(n),
        "attention_bias": np.triu(np.full((1, 1, n, n), -3e38, np.float32), 1),
        "beam_idx": np.zeros(1, np.int32),
    })["logits"][0]  # fmt: skip
    expected = ReferenceModel(source).forward(TOKENS).logits
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("type_name", CODES)
def test_the_plugin_multiplies_codes(make_gguf: GgufMaker, tmp_path: Path, type_name: str) -> None:
    """Every product reads its matrix as it is stored, and caches are part of the attention."""
    config = open_checkpoint(str(make_gguf("qwen2", type_name))).config
    folder = exported(make_gguf("qwen2", type_name), tmp_path / "b")
    found: Counter[tuple[str, str]] = Counter()
    for node in compiled(folder).get_runtime_model().get_ordered_ops():
        info = {key: str(value.value) for key, value in node.get_rt_info().items()}
        found[info["layerType"], info["runtimePrecision"]] += 1
    assert found["FullyConnected", CODES[type_name]] == 7 * config.n_layers + 1
    assert found["RMS", "f32"] == 2 * config.n_layers + 1
    assert found["RoPE", "f32"] == found["MemoryInput", "f32"] == 2 * config.n_layers
    assert not {"Broadcast", "Softmax", "MatMul"} & {kind for kind, _ in found}


def test_a_failed_pass_leaves_the_text_usable(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        sequence, other = engine.new_sequence(), engine.new_sequence()
        as_chain(sequence, [7, 8, 9])
        cache: Any = sequence.state
        inputs = cache._inputs
        odd = {"input_ids": np.zeros((1, 1, 2), np.int64)}
        with monkeypatch.context() as patch:
            patch.setattr(cache, "_inputs", lambda *args: inputs(*args) | odd)
            with pytest.raises(SessionError, match=r"^OpenVINO could not .* on CPU: ") as caught:
                sequence.forward(TokenTree.chain([10, 11]), [1])
        assert "\n" not in str(caught.value)
        logits = sequence.forward(TokenTree.chain([12]), [0]).logits[0]
        np.testing.assert_allclose(logits, as_chain(other, [7, 8, 9, 12]), rtol=0, atol=gap(bundle))
    with pytest.raises(SessionError, match="closed"):
        sequence.forward(TokenTree.chain([13]), [0])


def test_a_pass_can_be_ended(bundle: Path) -> None:
    """Another thread ends passes until one is hit; the text before it stays of use."""
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        sequence, other = engine.new_sequence(), engine.new_sequence()
        as_chain(sequence, [7, 8, 9])
        is_over = threading.Event()

        def end_passes() -> None:
            while not is_over.is_set():
                running_passes.end_passes()
                time.sleep(0.0005)

        thread = threading.Thread(target=end_passes)
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                for _ in range(400):
                    sequence.forward(TokenTree.chain(range(10, 70)), [59])
        finally:
            is_over.set()
            thread.join()
        logits = sequence.forward(TokenTree.chain([12]), [0]).logits[0]
        np.testing.assert_allclose(logits, as_chain(other, [7, 8, 9, 12]), rtol=0, atol=gap(bundle))


def test_two_texts_of_one_model_do_not_mix(bundle: Path) -> None:
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        sequences = [engine.new_sequence() for _ in range(2)]
        texts = [[7, 8, 9], [20, 21]]
        expected = [as_chain(sequences[0], [*text, 33]) for text in texts]
        for sequence, text in zip(sequences, texts, strict=True):
            as_chain(sequence, text)
        for sequence, logits in zip(sequences, expected, strict=True):
            found = sequence.forward(TokenTree.chain([33]), [0]).logits[0]
            np.testing.assert_allclose(found, logits, rtol=0, atol=gap(bundle))


@pytest.mark.robustness
@pytest.mark.parametrize("name", ["gpu", "", "GPU.7\n", "TPU", 3])
def test_an_unknown_device_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^device is [^\n]*expected [^\n]*$"):
        EngineOptions(device=name)


@pytest.mark.robustness
def test_a_missing_device_says_what_it_takes(bundle: Path) -> None:
    found = {name.partition(".")[0] for name in ov.Core().available_devices}
    for name in set(DEVICE.providers) - found:
        with pytest.raises(
            ConfigError, match=f"device {name} is not here, .* have CPU.*: it takes an"
        ):
            edgedec.load(bundle, EngineOptions(device=name))


@pytest.mark.robustness
def test_a_bundle_of_another_target_is_refused(smooth_gguf: Path, tmp_path: Path) -> None:
    export(ExportConfig(str(smooth_gguf), tmp_path / "cpu", context=64))
    with pytest.raises(ConfigError, match=r"compiler fused.* --target openvino"):
        edgedec.load(tmp_path / "cpu", EngineOptions(device="CPU"))


@pytest.mark.robustness
def test_the_missing_extra_is_named(
    bundle: Path, smooth_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if "edgedec" in name and "openvino" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "openvino", None)
    install = r"needs openvino: pip install 'edgedec-runtime\[openvino\]'$"
    with pytest.raises(BundleError, match=install):
        edgedec.load(bundle)
    with pytest.raises(ConfigError, match=r"have nothing: it takes pip install"):
        edgedec.load(bundle, EngineOptions(device="CPU"))
    with pytest.raises(ConfigError, match=install):
        exported(smooth_gguf, tmp_path / "b")


@pytest.mark.robustness
@pytest.mark.parametrize("kept", [0, 100, 4096])
def test_weights_that_are_cut_short_are_refused(
    bundle: Path, smooth_gguf: Path, tmp_path: Path, kept: int
) -> None:
    folder = exported(smooth_gguf, tmp_path / "b")
    weights = (folder / "weights.bin").read_bytes()
    (folder / "weights.bin").write_bytes(weights[:kept])
    with pytest.raises(BundleError, match=r"weights.bin") as caught:
        edgedec.load(tmp_path / "b")
    assert "\n" not in str(caught.value)


@pytest.mark.robustness
def test_a_graph_of_another_model_is_refused(
    make_gguf: GgufMaker, smooth_gguf: Path, tmp_path: Path
) -> None:
    graph = exported(smooth_gguf, tmp_path / "a") / "model.xml"
    other = exported(make_gguf("qwen2", "Q8_0"), tmp_path / "b", hidden_layers=(1,)) / "model.xml"
    contract = read_manifest(tmp_path / "a").target.contract
    with pytest.raises(BundleError, match=r"outputs .*hidden\.1.* the manifest states"):
        check_ports(other, read_graph(other), contract, tiny_config(smooth_gguf))
    short = replace(tiny_config(smooth_gguf), n_layers=1)
    with pytest.raises(BundleError, match=r"states .*key_values\.1\.key.* the manifest states"):
        check_ports(graph, read_graph(graph), contract, short)


def tiny_config(gguf: Path) -> ModelConfig:
    """Returns the configuration that a file states."""
    return open_checkpoint(str(gguf)).config


def test_a_pass_takes_the_smallest_graph_it_fits_in() -> None:
    def sizes(n: int, logit_rows: Sequence[int], n_known: int = 0) -> list[tuple[int, int]]:
        wanted = Pass(cast(Any, None), TokenTree.chain(range(n)), logit_rows, n_known=n_known)
        return [(part.bucket.n_rows, len(part.tokens)) for part in parts_of(wanted)]

    assert sizes(1, [0]) == [(1, 1)]
    assert sizes(4, [3], n_known=3) == [(1, 1)]
    assert sizes(3, range(3)) == [(4, 3)]
    assert sizes(16, range(16)) == [(16, 16)]
    assert sizes(150, [149]) == [(64, 64), (64, 64), (64, 22)]
    assert sizes(100, [98, 99]) == [(64, 64), (16, 16), (16, 16), (4, 4)]
    assert sizes(40, range(40)) == [(16, 16), (16, 16), (8, 8)]


@pytest.mark.parametrize("bucket", BUCKETS)
def test_static_graphs_know_all_sizes(bundle: Path, bucket: StaticPass) -> None:
    target = read_manifest(bundle).target
    config, tables = target.config, PositionTables(target.config, target.contract.inputs)
    graph = static_graph(read_graph(bundle / "target/model.xml"), bucket, 96, tables.sizes)
    assert not graph.is_dynamic()
    assert not graph.get_variables()
    ports = {port.any_name: list(port.shape) for port in (*graph.inputs, *graph.outputs)}
    assert ports["rope.cos"] == [bucket.n_rows, config.head_size // 2]
    past, n = past_port(1, "key"), bucket.n_rows
    assert ports[past] == [1, config.n_kv_heads, 96, config.head_size]
    assert ports[present_port(past)] == [1, config.n_kv_heads, n, config.head_size]
    assert ports["attention_bias"] == [1, 1, n, 96 + n]
    assert ports["logits"] == [1, bucket.n_logits, config.n_logits]
