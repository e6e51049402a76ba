"""Bundles for Qualcomm's NPUs, compiled and evaluated by Qualcomm's library for x86."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx
import pytest

import edgedec
from edgedec import BundleError, Engine, EngineOptions, GenerationConfig, targets
from edgedec.export import compilers
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.models.static_passes import BUCKETS
from edgedec.system.machine import machine_triple
from edgedec.targets.qnn.socs import SOCS

from ...export.conftest import even_weights
from ..against_reference import error_of_passes, gap_of_tokens

GgufMaker = Callable[..., Path]
Array = npt.NDArray[Any]

HERE = "x86_64-linux-gnu"
CODES_ERROR = 1e-2
"""Mean error of logits over their spread, rounding every value to 16 bits."""

LIBRARY_ERROR = 4e-2
"""Where Qualcomm's library multiplies with blocks of 4 bits, whose arithmetic is its own."""


def test_a_soc_is_named() -> None:
    def config(**options: str) -> ExportConfig:
        return ExportConfig("m.gguf", Path("b"), **options)

    with pytest.raises(ConfigError, match=r"needs --soc, one of SM8350 \(.*\), SM8550"):
        config(device_target="qnn")
    with pytest.raises(ConfigError, match=r"soc is 'SM1', expected one of SM8350 .*SM8850"):
        config(device_target="qnn", soc="SM1")
    with pytest.raises(ConfigError, match="--soc SM8650 is for --target qnn"):
        config(soc="SM8650")


pytest.importorskip("onnxruntime_qnn")
pytestmark = pytest.mark.skipif(machine_triple() != HERE, reason="Qualcomm's library is for x86")


@pytest.fixture(scope="module")
def gguf(make_gguf: GgufMaker) -> Path:
    return make_gguf("llama", "Q4_0", even_weights())


@pytest.fixture(scope="module")
def bundle(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("qnn") / "b"
    export(
        ExportConfig(str(gguf), path, device_target="qnn", soc="SM8650", context=64, triple=HERE)
    )
    return path


@pytest.fixture
def engine(bundle: Path) -> Iterator[Engine]:
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        yield engine


def test_binaries_say_what_they_are_for(bundle: Path) -> None:
    entry = read_manifest(bundle).target
    assert entry.contract.providers == ("SM8650",)
    folder = bundle / "target"
    for bucket in BUCKETS:
        assert b"soc_type=SM8650;arch=75;" in (folder / f"{bucket.name}.bin").read_bytes()
        wrapper = onnx.load(folder / f"{bucket.name}.onnx")
        assert [node.op_type for node in wrapper.graph.node] == ["EPContext"]
    files = {path.name for path in folder.iterdir()}
    assert files == {f"{bucket.name}.{kind}" for bucket in BUCKETS for kind in ("bin", "onnx")}


@pytest.mark.parametrize("soc", ["SM8350", "SM8850"])
def test_a_bundle_for_a_device_shares_weights_and_is_refused_here(
    gguf: Path, tmp_path: Path, soc: str
) -> None:
    export(ExportConfig(str(gguf), tmp_path / "b", device_target="qnn", soc=soc, context=32))
    binaries = [*(tmp_path / "b/target").glob("*.bin")]
    assert [path.name for path in binaries] == ["context.bin"]
    assert SOCS[soc].mark in binaries[0].read_bytes()
    with pytest.raises(BundleError, match=r"compiled for aarch64-linux-gnu, this machine is x86"):
        edgedec.load(tmp_path / "b")


def test_verification_saw_both_the_codes_and_the_library(bundle: Path) -> None:
    found = read_manifest(bundle).verification
    assert found["mean_abs_error"] < CODES_ERROR * found["logit_std"]
    assert found["tree_max_abs_error"] < 2 * CODES_ERROR * found["logit_std"]
    assert found["npu_mean_abs_error"] < LIBRARY_ERROR * found["logit_std"]


def test_passes_of_all_sizes_and_trees(engine: Engine, gguf: Path) -> None:
    """A prompt of several graphs; of trees of four the third is kept; rows come and go."""
    assert error_of_passes(engine.new_sequence(), gguf, 40, 3) < LIBRARY_ERROR


@pytest.mark.parametrize("method", ["plain", "lookup"])
def test_methods_write_what_float32_would(engine: Engine, gguf: Path, method: str) -> None:
    config = GenerationConfig(max_new_tokens=8, ignore_eos=True, method=method)
    assert gap_of_tokens(engine, gguf, "he hello hello he hello", config) < 2 * LIBRARY_ERROR


def test_nothing_is_printed_beside_the_text(bundle: Path) -> None:
    program = Path(sys.executable).with_name("edgedec")
    command = [str(program), "run", str(bundle), "he", "-n", "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["lossless"] == "up to ties"


def test_binaries_of_another_device_are_refused(bundle: Path, tmp_path: Path) -> None:
    copy = tmp_path / "b"
    shutil.copytree(bundle, copy)
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"SM8650"', '"SM8550"'))
    with pytest.raises(BundleError, match=r"rows_1\.bin is not compiled for SM8550, which"):
        edgedec.load(copy)
    manifest.write_text(manifest.read_text().replace('"SM8550"', '"SM1"'))
    with pytest.raises(BundleError, match=r"unknown device: SoC is 'SM1', expected one of SM8350"):
        edgedec.load(copy)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, bundle: Path) -> None:
    def without(name: str) -> Any:
        raise ModuleNotFoundError(f"No module named {name}", name="onnxruntime_qnn")

    monkeypatch.setattr(targets.importlib, "import_module", without)
    with pytest.raises(
        ConfigError, match=r"needs onnxruntime_qnn: pip install 'edgedec-runtime\[qnn\]'"
    ):
        compilers.find_compiler("qnn")
    with pytest.raises(
        BundleError, match=r"needs onnxruntime_qnn: pip install 'edgedec-runtime\[qnn\]'"
    ):
        edgedec.load(bundle)
