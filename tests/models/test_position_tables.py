"""Tables of positions grow, and each row is the one that a whole table has."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from edgedec.models.config import ModelConfig, RopeScaling
from edgedec.models.position_tables import PositionTables
from edgedec.models.rope import Rope, query_growth, rope_tables

PORTS = ("input_ids", "rope.cos", "rope.sin")
MILLION = 1 << 20


@pytest.fixture
def config(make_source: Any) -> ModelConfig:
    made: ModelConfig = dataclasses.replace(make_source().config, max_positions=MILLION)
    return made


@pytest.mark.parametrize(
    "scaling", [RopeScaling(), RopeScaling("linear", 4.0)], ids=["none", "linear"]
)
def test_grown_rows_are_those_of_a_whole_table(config: ModelConfig, scaling: RopeScaling) -> None:
    config = dataclasses.replace(config, rope_scaling=scaling)
    tables = PositionTables(config, PORTS)
    for n in (1, 1000, 1025, 5000, 5001, 70_001):
        grown = tables.up_to(n)
        assert set(grown) == {"rope.cos", "rope.sin"}
        assert n <= len(grown["rope.cos"]) <= max(1024, 2 * n)
    for name, whole in zip(PORTS[1:], rope_tables(config, len(grown["rope.cos"])), strict=True):
        np.testing.assert_array_equal(grown[name].view(np.int32), whole.view(np.int32))


def test_short_texts_need_short_tables(config: ModelConfig) -> None:
    tables = PositionTables(config, PORTS)
    first = tables.up_to(1)
    assert sum(array.nbytes for array in first.values()) == 2 * 1024 * config.head_size // 2 * 4
    assert tables.up_to(1024) is first
    assert tables.up_to(1025) is not first


def test_no_longer_than_the_model_can_use(config: ModelConfig) -> None:
    tables = PositionTables(dataclasses.replace(config, max_positions=1500), PORTS)
    assert len(tables.up_to(1025)["rope.cos"]) == 1500


def test_layers_that_differ_have_tables_of_their_own(config: ModelConfig) -> None:
    layers = tuple(
        dataclasses.replace(config.layer(i), rope_theta=500.0 if i else config.rope_theta)
        for i in range(config.n_layers)
    )
    config = dataclasses.replace(config, layers=layers)
    tables = PositionTables(config, ("rope.500.0.sin", "rope.500.0.cos", *PORTS)).up_to(3000)
    cos, sin = rope_tables(config, 3000, Rope(500.0, True))
    np.testing.assert_array_equal(tables["rope.500.0.cos"][:3000], cos)
    np.testing.assert_array_equal(tables["rope.500.0.sin"][:3000], sin)
    assert not np.array_equal(tables["rope.cos"], tables["rope.500.0.cos"])


def test_growth_of_queries(config: ModelConfig) -> None:
    config = dataclasses.replace(config, query_growth=0.1, query_growth_start=100)
    rows = PositionTables(config, ("query_growth",)).up_to(2000)["query_growth"]
    expected = query_growth(config, np.arange(2000)).astype(np.float32)
    np.testing.assert_array_equal(rows[:2000, 0], expected)
