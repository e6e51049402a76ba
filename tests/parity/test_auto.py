"""Every family: `auto` and drafts from the text itself give the tokens of plain decoding."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library

pytestmark = [
    pytest.mark.parity,
    pytest.mark.slow,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]
TOYS = {
    path.stem.removeprefix("test_"): path.stem
    for path in sorted((Path(__file__).parents[1] / "models").glob("test_*.py"))
    if re.search(r"class TestParity\((?!Bidirectional|Embedder)", path.read_text(encoding="utf-8"))
}
"""Family -> the module of its tests, which makes a tiny model of random weights.

Models that fill masks in have no drafts, nor have those that make vectors.
"""

CONTEXT, N_NEW = 256, 60
PROMPT = "ABCABCDEFABCABCDEF"


@pytest.fixture(scope="module", params=TOYS)
def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    cls: Any = importlib.import_module(f"tests.models.{TOYS[request.param]}").TestParity
    longer = type("Longer", (cls,), {"SIZES": {**cls.SIZES, "max_position_embeddings": CONTEXT}})
    toy = longer.draw(tmp_path_factory.mktemp("toy"))
    bundle = tmp_path_factory.mktemp("bundle") / "b"
    export(ExportConfig(str(toy.folder), bundle, device_target="cpu", quantization="int8"))
    with load(bundle, EngineOptions(threads=2)) as engine:
        yield engine


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_drafts_change_no_token(engine: Engine, temperature: float) -> None:
    found = {}
    for method in ("plain", "lookup", "auto"):
        config = GenerationConfig(
            max_new_tokens=N_NEW,
            method=method,
            sampling=SamplingConfig(temperature=temperature),
            seed=4,
            ignore_eos=True,
        )
        found[method] = engine.generate(PROMPT, config).token_ids
    assert len(found["plain"]) == N_NEW
    assert found == dict.fromkeys(found, found["plain"])
