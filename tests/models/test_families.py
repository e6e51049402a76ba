"""Families are found by name, and weight names are complete."""

from __future__ import annotations

import pytest

from edgedec.models.blocks import decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family, known_families
from edgedec.models.fields import Fields
from edgedec.models.weights import PairedHeads, check_layers, check_weights

TINY = ModelConfig(
    family="llama", vocab_size=10, hidden_size=8, intermediate_size=12, n_layers=2, n_heads=4,
    n_kv_heads=2, head_size=2, max_positions=32, rms_norm_eps=1e-5, has_qkv_bias=True,
)  # fmt: skip

ENCODERS = ("bert", "modernbert", "roberta", "xlm_roberta")
"""Families without a decoder's weights."""


def test_known_families_are_modules() -> None:
    assert {"llama", "qwen2"} <= set(known_families())
    assert not any(name.startswith("_") for name in known_families())


@pytest.mark.parametrize("name", ["llama2", "_fields", "", "os", "..errors", "a\nb"])
def test_unknown_family_is_named(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"known families: .*llama, .*qwen2") as caught:
        find_family(name)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("family", known_families())
def test_every_weight_is_named_once(family: str) -> None:
    weights = find_family(family).weights(TINY)
    if family not in ENCODERS:
        assert {name: weight.shape for name, weight in weights.items()} == decoder_shapes(TINY)
    for places in ([w.hf for w in weights.values()], [w.gguf for w in weights.values()]):
        assert len({(place.name, place.first_row) for place in places}) == len(places)


def test_pairs_are_put_back_into_halves() -> None:
    assert PairedHeads(2).of(8).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_missing_weights_are_named_and_counted() -> None:
    weights = {ours: (w.shape, w.hf) for ours, w in find_family("qwen2").weights(TINY).items()}
    stored = {source.name: shape for shape, source in weights.values()}
    check_weights("qwen2", weights, stored)
    del stored["model.norm.weight"]
    with pytest.raises(CheckpointError, match=r"^missing tensor model\.norm\.weight;"):
        check_weights("qwen2", weights, stored)
    with pytest.raises(CheckpointError, match=r"^missing 27 tensors: .*, .*, .*, \.\.\.;"):
        check_weights("qwen2", weights, {})
    with pytest.raises(CheckpointError, match="states 2 layers, but there are only 1 tensors"):
        check_layers(TINY, 1)


def test_fields_are_read_with_their_types() -> None:
    values = {"n": 3, "whole": 4.0, "x": 0.5, "yes": True, "s": "t", "big": 10**400, "no": None}
    fields = Fields(values, "config.json", CheckpointError)
    assert fields.integer("no", 5) == 5
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
        lambda: fields.integer("no"),
        lambda: fields.integer("n", least=4),
        lambda: fields.table("nested", {"a": "b"}).integer("a"),
    ):
        with pytest.raises(CheckpointError, match=r"config\.json: "):
            read()
