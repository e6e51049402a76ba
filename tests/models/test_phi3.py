"""Phi-3 and Phi-4-mini against transformers: joined tensors, partial rotation, LongRoPE."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from family_parity import SIZES, TOKENS, FamilyParity, Logits, Tensors, Toy, transformers

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import PortableRunner

pytestmark = pytest.mark.parity

SHORT, LONG = [1.0, 1.5, 2.0, 2.5], [1.0, 4.0, 9.0, 16.0]
PHI4_MINI = {
    **SIZES,
    "hidden_size": 48,
    "partial_rotary_factor": 2 / 3,
    "original_max_position_embeddings": 16,
    "rope_scaling": {"type": "longrope", "short_factor": SHORT, "long_factor": LONG},
}


class TestParity(FamilyParity):
    """Phi-4-mini: sequences longer than the first context, so that the long factors hold."""

    SIZES = PHI4_MINI
    EXPECTED = {"family": "phi3", "rotary_size": 8, "layers": ()}
    ARCHITECTURE = "phi3"
    METADATA = {
        "rope.dimension_count": 8,
        "rope.scaling.original_context_length": 16,
        "rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(16)),
        "attention.sliding_window": 0,
    }
    REFUSED = {"hidden_act": "gelu"}
    WIDE_HEADS = {**FamilyParity.WIDE_HEADS, "partial_rotary_factor": 0.5}

    @classmethod
    def make_model(cls) -> Any:
        return transformers.Phi3ForCausalLM(transformers.Phi3Config(**cls.SIZES))

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        yield from super().gguf_tensors(name, values)
        if name == "lm_head.weight":
            yield "rope_factors_long.weight", np.array(LONG, np.float32)
            yield "rope_factors_short.weight", np.array(SHORT, np.float32)

    def test_greedy_tokens(self, toy: Toy, sequence: Any) -> None:
        pytest.skip("transformers changes the factors while a text grows beyond the first context")

    def test_short_contexts_have_the_short_factors(self, toy: Toy, tmp_path: Path) -> None:
        config = ExportConfig(str(toy.folder), tmp_path / "b", device_target="portable", context=16)
        entry = export(config).manifest.target
        runner = PortableRunner(tmp_path / "b" / entry.graph, entry.config)
        tokens = TOKENS[:16]
        logits = runner.compute_logits(tokens, range(-1, 15))
        np.testing.assert_allclose(logits, toy.logits(tokens), atol=1e-4)


class TestPhi3(FamilyParity):
    """Phi-3-mini: whole heads rotate, a window."""

    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {"family": "phi3", "rotary_size": 0}
    ARCHITECTURE = "phi3"
    METADATA = {"rope.dimension_count": 10, "attention.sliding_window": 7}
    LLAMA_CPP_DIFFERS = "it ignores the windows of Phi-3"
    WINDOW: int | None = 7

    @classmethod
    def make_model(cls) -> Any:
        config = transformers.Phi3Config(**cls.SIZES, sliding_window=cls.WINDOW)
        return transformers.Phi3ForCausalLM(config)

    def test_window_of_every_layer(self, toy: Toy) -> None:
        assert [layer.window for layer in open_checkpoint(str(toy.folder)).config.layers] == [7] * 4


class WithoutWindows(TestPhi3):
    METADATA: ClassVar[dict[str, Any]] = {"rope.dimension_count": 10}
    LLAMA_CPP_DIFFERS = ""
    WINDOW = None


@pytest.mark.models
def test_all_but_windows_in_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = WithoutWindows.draw(tmp_path)
    WithoutWindows().test_gguf_in_llama_cpp(toy, tmp_path, monkeypatch)
