"""A tiny model, texts with its hidden states, and a draft head trained on them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

from ..export.conftest import make_gguf, tiny  # noqa: F401 (fixtures)

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import (  # noqa: E402
    TextFeatures,
)
from edgedec.training.heads import train_head as heads  # noqa: E402

from .head_parts import (  # noqa: E402
    CONTEXT,
    LAYERS,
    plan_of,
    put,
    read,
    trained,
)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def make_checkpoint(make_gguf: Callable[..., Path], tiny: Any) -> Callable[[int], Path]:  # noqa: F811
    """Makes tiny models with biases, whose weights are no larger than those of real ones."""

    def make(seed: int) -> Path:
        random = tiny.tiny_weights(seed, has_bias=True)
        weights = {name: w / 16 if w.ndim == 2 else w for name, w in random.items()}
        return make_gguf("qwen2", weights=weights)

    return make


@pytest.fixture(scope="session")
def source(make_checkpoint: Callable[[int], Path]) -> Path:
    return make_checkpoint(0)


def exported(source: Path, folder: Path) -> Path:
    path = folder / "tiny.edgedec"
    export(ExportConfig(str(source), path, context=CONTEXT, hidden_layers=LAYERS))
    return path


@pytest.fixture(scope="session")
def make_bundle_of(
    make_checkpoint: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Path]:
    return lambda seed: exported(make_checkpoint(seed), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return exported(source, tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def texts(bundle: Path) -> list[TextFeatures]:
    return read(bundle, 12)


@pytest.fixture(scope="session")
def head(
    bundle: Path, texts: list[TextFeatures], tmp_path_factory: pytest.TempPathFactory
) -> heads.TrainedHead:
    return trained(bundle, tmp_path_factory.mktemp("features"), texts, plan_of())


@pytest.fixture(scope="session")
def whole(bundle: Path, head: heads.TrainedHead, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle with the head."""
    path = tmp_path_factory.mktemp("whole") / "tiny-head.edgedec"
    put(bundle, head, path, "int8")
    return path
