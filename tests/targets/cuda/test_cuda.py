"""Bundles for NVIDIA's GPUs, from file to text, on an emulated GPU: `emulated_cuda.py`."""

from __future__ import annotations

import ctypes
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec import Engine, EngineOptions, GenerationConfig
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels import cuda_driver
from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.manifest import read_manifest
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

pytest.importorskip("tvm", reason="needs the extra tvm")

from emulated_cuda import build_driver

from edgedec.targets.cuda import export_cuda as cuda

pytestmark = pytest.mark.parity

PROMPT = "he hello hello he hello he 12 12 he hello hello he"
MAX_GAP = 0.1
"""Of the spread of the logits: by how much float32 may prefer another token."""


@dataclass(frozen=True)
class Made:
    """A bundle, and the library of a driver that runs its kernels."""

    bundle: Path
    driver: Path


@pytest.fixture(scope="module")
def made(smooth_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("cuda")

    def build(source: Any, arch: str, path: Path) -> None:
        build_driver(source.text, folder)
        path.write_bytes(b"kernels of an emulated GPU")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "find_nvcc", lambda: None)
        patch.setattr(cuda, "build_fatbin", build)
        config = ExportConfig(
            str(smooth_gguf), folder / "b", device_target="cuda", arch="sm_87", context=192,
            hidden_layers=(1,),
        )  # fmt: skip
        done = export(config)
    trust(libraries(done.bundle, done.manifest))
    return Made(done.bundle, folder / "libcuda.so.1")


@pytest.fixture
def gpu(made: Made, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The driver's library, with the calls it gets."""
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(made.driver))
    driver = ctypes.CDLL(str(made.driver))
    driver.emulated_set_memory.argtypes = [ctypes.c_size_t]
    driver.emulated_set_memory(1 << 32)
    driver.emulated_fail_after(-1)
    yield driver
    driver.emulated_fail_after(-1)


@pytest.fixture
def engine(made: Made, gpu: Any) -> Iterator[Engine]:
    with edgedec.load(made.bundle, EngineOptions(draft=made.bundle)) as engine:
        yield engine


def gap_of(gguf: Path, prompt: Sequence[int], answer: Sequence[int]) -> tuple[float, float]:
    """Returns by how much float32 prefers other tokens at most, and the spread of its logits."""
    model = ReferenceModel(open_checkpoint(str(gguf)))
    logits = model.forward([*prompt, *answer[:-1]]).logits[len(prompt) - 1 :]
    found = logits.max(axis=1) - logits[np.arange(len(answer)), list(answer)]
    return float(found.max()), float(logits.std())


@pytest.mark.parametrize("method", ["plain", "lookup", "recycling", "draft"])
def test_methods_write_what_float32_would(smooth_gguf: Path, engine: Engine, method: str) -> None:
    config = GenerationConfig(max_new_tokens=12, method=method, ignore_eos=True)
    result = engine.generate(PROMPT * 3, config)
    prompt = engine.tokenizer.encode(PROMPT * 3)
    assert len(prompt) > 64
    largest, spread = gap_of(smooth_gguf, prompt, result.token_ids)
    assert largest < MAX_GAP * spread
    assert result.lossless == "up to ties"


def test_the_manifest_states_what_the_program_can(made: Made) -> None:
    manifest = read_manifest(made.bundle)
    can = manifest.target.contract.can
    assert (can.trees, can.row_stats, can.hidden, can.gates, can.entry) == (
        True, True, (1,), False, False,
    )  # fmt: skip
    assert can.row_gap > 0
    assert manifest.verification["kl_nats"] < 1e-4
    assert manifest.verification["tree_max_abs_error"] < 1e-3 * manifest.verification["logit_std"]


def as_chain(sequence: TokenSequence, tokens: Sequence[int]) -> Any:
    """Returns the logits after a text that is computed anew."""
    sequence.truncate(0)
    rows = sequence.forward(TokenTree.chain(tokens), [len(tokens) - 1])
    sequence.commit(range(len(tokens)))
    return rows.logits[0].copy()


def test_trees_snapshots_and_hidden_states(smooth_gguf: Path, engine: Engine) -> None:
    sequence, other = engine.new_sequence(), engine.new_sequence()
    as_chain(sequence, text := [7, 8, 9])
    for i in range(3):
        tree = TokenTree((20 + i, 30 + i, 40 + i, 50 + i), (-1, -1, 0, 2))
        logits = sequence.forward(tree, [2, 3]).logits.copy()
        expected = as_chain(other, [*text, 20 + i, 40 + i])
        np.testing.assert_allclose(logits[0], expected, rtol=0, atol=1e-4)
        sequence.commit((0, 2))
        text += [20 + i, 40 + i]
    state = sequence.snapshot()
    sequence.truncate(5)
    sequence.restore(replace(state))
    rows = sequence.forward(TokenTree.chain([99]), [0], hidden_layers=[1])
    np.testing.assert_allclose(rows.logits[0], as_chain(other, [*text, 99]), rtol=0, atol=1e-4)
    reference = ReferenceModel(open_checkpoint(str(smooth_gguf))).forward([*text, 99])
    expected = reference.hidden[1][-1]
    tolerance = 2e-3 * float(np.abs(expected).max())  # keys and values are float16
    np.testing.assert_allclose(rows.hidden[1][0], expected, rtol=0, atol=tolerance)


def test_a_greedy_step_reads_little(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    sequence, n_read = engine.new_sequence(), list[int]()
    as_chain(sequence, [7, 8, 9])
    read = cuda_driver.CudaDevice.read

    def counted(device: Any, address: int, values: Any) -> None:
        n_read.append(values.nbytes)
        read(device, address, values)

    monkeypatch.setattr(cuda_driver.CudaDevice, "read", counted)
    rows = sequence.forward(TokenTree.chain([10]), [0], with_logits=False)
    assert rows.stats.argmax.shape == (1,)
    assert len(n_read) == 1
    assert 3 * 4 + 2 * 8 * 4 <= n_read[0] <= 2048


def test_a_device_that_vanishes_is_one_error(made: Made, gpu: Any) -> None:
    with edgedec.load(made.bundle) as engine:
        sequence = engine.new_sequence()
        as_chain(sequence, [7, 8, 9])
        gpu.emulated_fail_after(5)
        with pytest.raises(SessionError, match=r"^the GPU failed \(CUDA cannot .*\): load"):
            sequence.forward(TokenTree.chain([10]), [0])
        with pytest.raises(SessionError, match="closed"):
            sequence.forward(TokenTree.chain([10]), [0])
    gpu.emulated_fail_after(-1)
    with edgedec.load(made.bundle) as engine:
        as_chain(engine.new_sequence(), [7, 8, 9])


def test_no_memory_for_weights_or_a_text(made: Made, gpu: Any) -> None:
    gpu.emulated_set_memory(1 << 16)
    with pytest.raises(BundleError, match=r"does not fit emulated GPU, which has 4096 MB"):
        edgedec.load(made.bundle)
    gpu.emulated_set_memory(1 << 32)
    with edgedec.load(made.bundle) as engine:
        gpu.emulated_set_memory(1 << 10)
        with pytest.raises(SessionError, match="the GPU has too little memory"):
            engine.new_sequence()
        gpu.emulated_set_memory(1 << 32)
        as_chain(engine.new_sequence(), [7, 8])


def test_all_memory_is_given_back(made: Made, gpu: Any) -> None:
    before = gpu.emulated_allocations()
    with edgedec.load(made.bundle) as engine:
        as_chain(engine.new_sequence(), [7, 8])
        assert gpu.emulated_allocations() > before
    assert gpu.emulated_allocations() == before


def test_without_a_driver_it_is_one_line(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(BundleError, match=r"for NVIDIA GPUs of sm_87 or newer; there is no NVIDIA"):
        edgedec.load(made.bundle)


def state_again(bundle: Path, path: Path) -> None:
    """Makes the manifest of ``bundle`` state the file ``path`` as it is now."""
    manifest = json.loads((bundle / "manifest.json").read_text())
    stated = manifest["files"][path.relative_to(bundle).as_posix()]
    stated |= {"n_bytes": path.stat().st_size, "sha256": file_sha256(path)}
    (bundle / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda p: p.update(arch="sm_90"), "emulated GPU is sm_87: .*--arch sm_87"),
        (lambda p: p.update(kernels={}), "which is no kernel of it"),
        (lambda p: p["keep"]["arguments"].pop(), "launched with 3 arguments"),
        (lambda p: p["keep"]["arguments"].__setitem__(0, ["work", 1 << 60]), "over work at"),
        (lambda p: p["passes"].reverse(), "rising numbers"),
        (lambda p: p.pop("sizes"), "KeyError"),
        (lambda p: p["passes"][0]["outputs"].pop("logits"), "has outputs"),
        (lambda p: p["sizes"].update(weights=1 << 40), "its program reads"),
    ],
)
def test_a_changed_program_is_refused(
    made: Made, gpu: Any, tmp_path: Path, change: Any, why: str
) -> None:
    bundle = shutil.copytree(made.bundle, tmp_path / "b")
    path = bundle / "target" / "program.json"
    program = json.loads(path.read_text())
    change(program)
    path.write_text(json.dumps(program))
    state_again(bundle, path)
    with pytest.raises(BundleError, match=why):
        edgedec.load(bundle)


def test_kernels_of_strangers_are_refused(made: Made, gpu: Any, tmp_path: Path) -> None:
    bundle = shutil.copytree(made.bundle, tmp_path / "b")
    path = bundle / "target" / "kernels.fatbin"
    path.write_bytes(path.read_bytes()[::-1])
    state_again(bundle, path)
    with pytest.raises(BundleError, match="compiled code that you neither made nor trusted"):
        edgedec.load(bundle)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"device_target": "cuda", "arch": "sm_75"},
            r"arch is 'sm_75'.*sm_87 \(Jetson Orin",
        ),
        ({"arch": "sm_87"}, "--arch sm_87 is for --target cuda, the device target is cpu"),
    ],
)
def test_an_architecture_is_known_or_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        ExportConfig("model.gguf", Path("b"), **options)


def test_an_architecture_may_be_the_draft_models() -> None:
    draft = DraftModelConfig("small.gguf", device_target="cuda")
    config = ExportConfig("model.gguf", Path("b"), arch="sm_87", draft=draft)
    assert config.arch == "sm_87"


def test_export_says_what_it_needs(
    smooth_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ExportConfig(str(smooth_gguf), tmp_path / "b", device_target="cuda", context=64)
    monkeypatch.setattr(cuda, "find_nvcc", lambda: None)
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(ConfigError, match=r"which GPU is the bundle for\? there is no NVIDIA"):
        export(config)
    monkeypatch.undo()
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match="nvcc, which is not here: install NVIDIA's CUDA toolkit"):
        export(config)
    assert not (tmp_path / "b").exists()
