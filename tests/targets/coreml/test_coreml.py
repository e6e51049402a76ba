"""Bundles for Core ML, from file to text, over packages that NumPy evaluates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import edgedec
from edgedec import BundleError, Engine, EngineOptions, GenerationConfig, targets
from edgedec.apps.cli import main
from edgedec.export import compilers
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.phases.recipe_phases import configure
from edgedec.export.pipeline import export
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.models.static_passes import STATIC_PASSES

from ...export.conftest import even_weights
from ..against_reference import error_of_passes, gap_of_tokens

pytest.importorskip("coremltools")
from edgedec.targets.coreml import run_coreml as coreml
from edgedec.targets.coreml import target
from edgedec.targets.coreml.export_interpreter import Interpreter

pytestmark = pytest.mark.slow

GgufMaker = Callable[..., Path]
Array = npt.NDArray[Any]

FLOAT16 = 1e-2
"""Error of logits over their spread, on the mean, rounding every value to float16."""

PROMPT = "he hello hello he hello he 12 12 he hello hello he"


class State:
    """What `coremltools.models.MLState` offers, over arrays."""

    def __init__(self, arrays: dict[str, Array]) -> None:
        self.arrays = arrays

    def read_state(self, name: str) -> Array:
        return self.arrays[name].copy()

    def write_state(self, name: str, value: Array) -> None:
        assert value.shape == self.arrays[name].shape
        self.arrays[name] = value.astype(np.float16)


class Function:
    """What `coremltools.models.MLModel` offers, by evaluating one function of a package."""

    def __init__(self, interpreter: Interpreter, name: str) -> None:
        self._interpreter = interpreter
        self._name = name

    def predict(self, data: dict[str, Array], state: State) -> dict[str, Array]:
        return self._interpreter.predict(self._name, data, state.arrays)

    def make_state(self) -> State:
        return State(self._interpreter.new_state())


@pytest.fixture(scope="module")
def gguf(make_gguf: GgufMaker) -> Path:
    return make_gguf("llama", "Q4_1", even_weights())


@pytest.fixture(scope="module")
def bundle(gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("coreml") / "b"
    export(ExportConfig(str(gguf), path, device_target="coreml", context=128))
    return path


@pytest.fixture(scope="module")
def interpreter(bundle: Path) -> Interpreter:
    return Interpreter(bundle / "target")


@pytest.fixture
def engine(
    bundle: Path, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Engine]:
    def open_functions(package: Path) -> dict[str, Function]:
        assert package == bundle / "target" / "model.mlpackage"
        return {static.name: Function(interpreter, static.name) for static in STATIC_PASSES}

    monkeypatch.setattr(target, "GRAPH", replace(target.GRAPH, system=None))
    monkeypatch.setattr(coreml, "open_functions", open_functions)
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        yield engine


def check_verified(verified: dict[str, Any]) -> None:
    for key in ("mean_abs_error", "prefill_max_abs_error"):
        assert verified[key] < FLOAT16 * verified["logit_std"]
    # The largest of all single differences, and of two results that were both rounded.
    assert verified["tree_max_abs_error"] < 2 * FLOAT16 * verified["logit_std"]


def test_the_package_computes_what_the_reference_does(
    bundle: Path, make_gguf: GgufMaker, tmp_path: Path
) -> None:
    check_verified(read_manifest(bundle).verification)
    source = str(make_gguf("llama", "Q8_0", even_weights()))
    config = ExportConfig(source, tmp_path / "b", device_target="coreml", context=16)
    check_verified(export(config).manifest.verification)


@pytest.mark.long
def test_smollm2_computes_what_the_reference_does(smollm2_gguf: Path, tmp_path: Path) -> None:
    """A prefill chunk, single rows, and a tree of more than 8."""
    config = ExportConfig(str(smollm2_gguf), tmp_path / "b", device_target="coreml", context=64)
    check_verified(export(config).manifest.verification)


def test_passes_of_all_sizes_and_trees(
    engine: Engine, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of several functions; of trees of four the third is kept, and rows move together."""
    monkeypatch.setattr(coreml, "_MAX_HIDDEN_ROWS", 5)
    assert error_of_passes(engine.new_sequence(), gguf, 75, 5) < FLOAT16


@pytest.mark.parametrize("method", ["plain", "lookup"])
def test_methods_write_what_float32_would(engine: Engine, gguf: Path, method: str) -> None:
    config = GenerationConfig(max_new_tokens=16, ignore_eos=True, method=method)
    assert gap_of_tokens(engine, gguf, PROMPT, config) < 2 * FLOAT16


def test_elsewhere_the_bundle_says_where_it_runs(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BundleError, match="which macOS 15 or later runs, this machine is"):
        edgedec.load(bundle)
    with pytest.raises(SystemExit):
        main(["inspect", str(bundle), "--verify"])
    assert "runs on        macOS 15 or later" in capsys.readouterr().out


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find = targets.importlib.import_module

    def without(name: str) -> Any:
        if not name.endswith("export_coreml"):
            return find(name)
        raise ModuleNotFoundError(f"No module named {name}", name="coremltools")

    monkeypatch.setattr(targets.importlib, "import_module", without)
    with pytest.raises(
        ConfigError, match=r"needs coremltools: pip install 'edgedec-runtime\[coreml\]'"
    ):
        compilers.find_compiler("coreml")


@pytest.mark.parametrize(("trained", "expected"), [(64, 64), (1 << 17, 2048)])
def test_a_context_is_as_long_as_usual(
    make_gguf: GgufMaker, tmp_path: Path, trained: int, expected: int
) -> None:
    source = open_checkpoint(str(make_gguf("llama", metadata={"llama.context_length": trained})))
    config = ExportConfig("", tmp_path, device_target="coreml")
    model = RecipeModel(
        kind="target", config=config, published=source, source=source, bundle_folder=tmp_path,
        quantization="keep",
    )  # fmt: skip
    configure(model)
    assert model.context == expected
