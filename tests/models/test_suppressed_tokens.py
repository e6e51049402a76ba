"""Tokens that a publisher wants never to be written, such as those for sounds in Gemma 4."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import PortableRunner
from edgedec.kernels.library import has_library
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.reference import ReferenceModel
from tests.models import test_gemma4, test_qwen3
from tests.parity.family_parity import TOKENS, Toy

pytestmark = pytest.mark.parity
GENERATION = "generation_config.json"


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Toy:
    return test_gemma4.TestParity.draw(tmp_path_factory.mktemp("gemma4"))


@pytest.fixture(scope="module")
def unwanted(toy: Toy) -> list[int]:
    """The likeliest tokens of some places, without which others are."""
    return sorted({int(row.argmax()) for row in toy.logits(TOKENS)})


def folder_with(toy: Toy, folder: Path, stated: Any) -> str:
    for file in toy.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / GENERATION).write_text(json.dumps({"suppress_tokens": stated}))
    return str(folder)


def check_logits(found: np.ndarray, whole: np.ndarray, unwanted: list[int]) -> None:
    others = np.setdiff1d(np.arange(whole.shape[1]), unwanted)
    np.testing.assert_allclose(found[:, others], whole[:, others], atol=1e-4)
    assert found[:, unwanted].max() < whole.min() - 1e4


def test_logits_of_a_directory(toy: Toy, unwanted: list[int], tmp_path: Path) -> None:
    """Ids that are no tokens are left out, as where stop tokens are named."""
    source = folder_with(toy, tmp_path, [*unwanted[::-1], unwanted[0], -1, 10**6])
    checkpoint = open_checkpoint(source)
    assert checkpoint.config.suppressed_tokens == tuple(unwanted)
    assert ModelConfig.from_dict(checkpoint.config.canonical()) == checkpoint.config
    whole = toy.logits(TOKENS)
    check_logits(ReferenceModel(checkpoint).forward(TOKENS).logits, whole, unwanted)
    path = tmp_path / "b"
    entry = export(ExportConfig(source, path, device_target="portable")).manifest.target
    logits = PortableRunner(path / entry.graph, entry.config).compute_logits(
        TOKENS, range(-1, len(TOKENS) - 1)
    )
    check_logits(logits, whole, unwanted)


@pytest.mark.parametrize("kv_format", ["float32", "float16"])
def test_ort(unwanted: list[int], tmp_path: Path, kv_format: str) -> None:
    """Halves hold what is added to the logits."""
    cls = test_qwen3.TestParity
    wide = type("Wide", (cls,), {"SIZES": {**cls.SIZES, **cls.WIDE_HEADS}})
    (tmp_path / "toy").mkdir()
    toy, path = wide.draw(tmp_path / "toy"), tmp_path / "b"
    source = folder_with(toy, tmp_path, unwanted)
    wanted = ExportConfig(source, path, device_target="ort", kv_format=kv_format)
    entry = export(wanted).manifest.target
    runner = PortableRunner(path / entry.graph, entry.config, is_prepacked=True)
    logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
    assert np.isfinite(logits).all()
    assert logits[:, unwanted].max() < -5e4
    assert np.delete(logits, unwanted, axis=1).min() > -1e3


def test_gguf(toy: Toy, unwanted: list[int], tmp_path: Path) -> None:
    class Writer(test_gemma4.TestParity):
        def write_header(self, writer: Any) -> None:
            super().write_header(writer)
            writer.add_array("tokenizer.ggml.suppress_tokens", unwanted)

    checkpoint = open_checkpoint(str(Writer().write_gguf(toy, tmp_path / "tiny.gguf")))
    check_logits(ReferenceModel(checkpoint).forward(TOKENS).logits, toy.logits(TOKENS), unwanted)


@pytest.mark.parametrize("target", ["cpu", "portable"])
def test_texts_do_without_them(toy: Toy, unwanted: list[int], tmp_path: Path, target: str) -> None:
    if target == "cpu" and not has_library():
        pytest.skip("the kernel library is not built")
    source, written = folder_with(toy, tmp_path, unwanted), {}
    for name, file in (("with", source), ("without", str(toy.folder))):
        export(ExportConfig(file, tmp_path / name, device_target=target))
        with load(tmp_path / name, EngineOptions(threads=2)) as engine:
            for method in ("plain", "lookup", "auto"):
                for temperature in (0.0, 1.5):
                    request = GenerationConfig(
                        max_new_tokens=30, method=method, ignore_eos=True, seed=3,
                        sampling=SamplingConfig(temperature=temperature),
                    )  # fmt: skip
                    tokens = engine.generate("!#!#!#!#", request).token_ids
                    written[name, method, temperature] = tokens
    for (name, method, temperature), tokens in written.items():
        assert tokens == written[name, "plain", temperature], method
        assert set(tokens).isdisjoint(unwanted) == (name == "with")


@pytest.mark.parametrize("stated", ["x", [1.5], [True], 7, [[1]]])
def test_other_values_are_refused(toy: Toy, tmp_path: Path, stated: Any) -> None:
    source = folder_with(toy, tmp_path, stated)
    with pytest.raises(CheckpointError, match=r"suppress_tokens is .*, expected a list of token"):
        open_checkpoint(source)


def test_nothing_stated(toy: Toy, tmp_path: Path) -> None:
    assert open_checkpoint(folder_with(toy, tmp_path, None)).config.suppressed_tokens == ()


@pytest.mark.parametrize("tokens", [(3, 1), (1, 1), (97,), (-1,), tuple(range(97))])
def test_configurations_that_make_no_sense(toy: Toy, tokens: tuple[int, ...]) -> None:
    fields = open_checkpoint(str(toy.folder)).config.canonical()
    with pytest.raises(ConfigError, match=r"suppressed_tokens are '\(.*, expected some of 0 to 96"):
        ModelConfig.from_dict({**fields, "suppressed_tokens": list(tokens)})
