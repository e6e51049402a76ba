"""Bundles and engines of the long tests, and the figures they print at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import edgedec
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels import library
from edgedec.system.processors import processors

CONTEXT = 768
QWEN = "Qwen2.5-Coder-{}-Instruct.Q4_K_M.gguf"
_FIGURES = pytest.StashKey[list[str]]()

Note = Callable[[str], None]
OpenEngine = Callable[..., edgedec.Engine]


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Returns a function that keeps a figure for the end of the run."""
    figures = request.config.stash.setdefault(_FIGURES, [])
    name = request.node.name
    return lambda figure: figures.append(f"{name}: {figure}")


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Prints the figures."""
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("figures of the long tests")
        for figure in figures:
            terminalreporter.write_line(figure)


@pytest.fixture(scope="session")
def smollm2_pair(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 with a draft model: itself in 4 bits, its head trimmed, so that drafts differ."""
    if not library.has_library():
        pytest.skip("the compiled kernels are missing")
    bundle = tmp_path_factory.mktemp("long") / "pair.edgedec"
    draft = DraftModelConfig(source=str(smollm2_gguf), quantization="int4", head_size=16384)
    export(ExportConfig(str(smollm2_gguf), bundle, draft=draft, has_brought_head=False))
    return bundle


@pytest.fixture(scope="session")
def qwen_pair(find_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen2.5-Coder 1.5B with the 0.5B as its draft model."""
    target, draft = (find_model(QWEN.format(size)) for size in ("1.5B", "0.5B"))
    bundle = tmp_path_factory.mktemp("long") / "qwen.edgedec"
    config = DraftModelConfig(source=str(draft))
    export(ExportConfig(str(target), bundle, draft=config, has_brought_head=False))
    return bundle


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where an n-gram store may be made."""
    return tmp_path / "grown.store"


@pytest.fixture(params=[1, 2], ids=["1 thread", "2 threads"])
def threads(request: pytest.FixtureRequest) -> int:
    if request.param > processors():
        pytest.skip(f"this machine has fewer than {request.param} processors")
    return int(request.param)
