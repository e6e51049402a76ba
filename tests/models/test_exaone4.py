"""EXAONE 4 against transformers: windows with rotation, and layers without either."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from family_parity import SIZES, FamilyParity, transformers

from edgedec.models.config import LayerConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.families import exaone4
from edgedec.models.fields import Fields

pytestmark = pytest.mark.parity

LOCAL, GLOBAL = LayerConfig(56, 1e4, window=6), LayerConfig(56, 0.0)


class TestParity(FamilyParity):
    SIZES = {**SIZES, "head_dim": 10}
    EXPECTED = {"family": "exaone4", "layers": (LOCAL, LOCAL, LOCAL, GLOBAL)}
    ARCHITECTURE = "exaone4"
    METADATA = {"attention.sliding_window": 6}
    LLAMA_CPP_DIFFERS = "it has windows in models of 64 layers only"
    WINDOW: int | None = 6
    REFUSED = {"hidden_act": "gelu"}

    @classmethod
    def make_model(cls) -> Any:
        more = {} if cls.WINDOW else {"layer_types": ["full_attention"] * 4}
        config = transformers.Exaone4Config(**cls.SIZES, **more, sliding_window=cls.WINDOW)
        return transformers.Exaone4ForCausalLM(config)


class OfTheSmall(TestParity):
    """The 1.2B has no window, and rotation everywhere."""

    METADATA: ClassVar[dict[str, Any]] = {}
    LLAMA_CPP_DIFFERS = ""
    WINDOW = None


class OfTheLarge(TestParity):
    """The 32B has 64 layers."""

    SIZES: ClassVar[dict[str, Any]] = {**TestParity.SIZES, "num_hidden_layers": 64}
    LLAMA_CPP_DIFFERS = ""


@pytest.mark.models
@pytest.mark.parametrize("published", [OfTheSmall, OfTheLarge])
def test_shapes_as_published_in_llama_cpp(
    published: type[TestParity], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = published.draw(tmp_path)
    published().test_gguf_in_llama_cpp(toy, tmp_path, monkeypatch)


FIELDS = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 5,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


def layers(**changes: Any) -> list[tuple[int, bool]]:
    """Returns window, and whether it rotates, of each layer."""
    config = exaone4.read_hf(Fields({**FIELDS, **changes}, "config.json", CheckpointError))
    return [(config.layer(i).window, config.layer(i).rope_theta > 0) for i in range(5)]


def test_layers_are_local_as_stated() -> None:
    local, whole = (6, True), (0, False)
    assert layers(sliding_window=6) == [local, local, local, whole, local]
    assert layers(sliding_window=6, sliding_window_pattern=2) == [local, whole] * 2 + [local]
    assert layers(sliding_window=6, sliding_window_pattern="LLG") == [
        local, local, whole, local, whole,
    ]  # fmt: skip
    assert layers(sliding_window=None) == [(0, True)] * 5
