"""Families are found by name, and weight names are complete."""

from __future__ import annotations

import pytest

from edgedec.models.blocks import weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import Fields, find_family, known_families
from edgedec.models.weights import SourceWeight, check_layers, check_weights

TINY = ModelConfig(
    family="llama", vocab_size=10, hidden_size=8, intermediate_size=12, n_layers=2, n_heads=4,
    n_kv_heads=2, head_size=2, max_positions=32, rms_norm_eps=1e-5, has_qkv_bias=True,
)  # fmt: skip


def test_known_families_are_modules() -> None:
    assert {"llama", "qwen2"} <= set(known_families())
    assert not any(name.startswith("_") for name in known_families())


@pytest.mark.parametrize("name", ["llama2", "_fields", "", "os", "..errors", "a\nb"])
def test_unknown_family_is_named(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"known families: .*llama, .*qwen2") as caught:
        find_family(name)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("family", known_families())
def test_maps_name_every_weight_once(family: str) -> None:
    module = find_family(family)
    for weights in (module.map_hf(TINY), module.map_gguf(TINY)):
        assert set(weights) == set(weight_shapes(TINY))
        assert len({source.name for source in weights.values()}) == len(weights)


def test_row_order_puts_pairs_back_into_halves() -> None:
    order = SourceWeight("q", n_interleaved_heads=2).row_order(8)
    assert order is not None
    assert order.tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert SourceWeight("v").row_order(8) is None


def test_missing_weights_are_named_and_counted() -> None:
    weights = find_family("qwen2").map_hf(TINY)
    stored = {weights[ours].name: shape for ours, shape in weight_shapes(TINY).items()}
    check_weights(TINY, weights, stored)
    del stored["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"^missing tensor model\.norm\.weight;"):
        check_weights(TINY, weights, stored)
    with pytest.raises(CheckpointError, match=r"^missing 27 tensors: .*, .*, .*, \.\.\.;"):
        check_weights(TINY, weights, {})
    with pytest.raises(CheckpointError, match="states 2 layers, but there are only 1 tensors"):
        check_layers(TINY, 1)


def test_fields_are_read_with_their_types() -> None:
    fields = Fields({"n": 3, "whole": 4.0, "x": 0.5, "yes": True, "s": "t", "big": 10**400})
    assert fields.integer("n") == 3
    assert fields.integer("whole") == 4
    assert fields.integer("absent", 7) == 7
    assert fields.number("x") == 0.5
    assert fields.flag("yes", False)
    assert fields.text("s") == "t"
    for read in (
        lambda: fields.integer("x"),
        lambda: fields.integer("yes"),
        lambda: fields.number("s"),
        lambda: fields.number("big"),
        lambda: fields.flag("n", True),
        lambda: fields.text("n"),
        lambda: fields.table("n"),
        lambda: fields.integer("absent"),
    ):
        with pytest.raises(CheckpointError, match=r"config\.json: "):
            read()
