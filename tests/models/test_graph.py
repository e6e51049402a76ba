"""The graph contract says only what holds together, and what the kernels do."""

from __future__ import annotations

import dataclasses
from itertools import product
from typing import Any

import numpy as np
import pytest

from edgedec.kernels import cpu, library
from edgedec.models.errors import ConfigError
from edgedec.models.graph import (
    N_TOP,
    ROW_STATS,
    Capabilities,
    GraphContract,
    KVLayout,
    is_past_port,
    layer_of_past,
    past_port,
    present_port,
    stats_port,
)
from edgedec.models.kv_formats import KV_PANEL, find_kv_format, kv_formats_of, kv_panels_of
from edgedec.runtime.sequences.row_stats import RowStats

from ..doors import attention_op, row_stats_op

ROWS = GraphContract(
    compiler="portable",
    backend="portable",
    triple="any",
    providers=("CPUExecutionProvider",),
    inputs=("input_ids", "attention_bias", "past_key_values.0.key", "past_key_values.0.value"),
    outputs=("logits", "present.0.key", "present.0.value"),
    kv=KVLayout("rows", "float32", row_nbytes=64),
    can=Capabilities(trees=True),
)


def test_names_of_past_and_present() -> None:
    assert past_port(12, "value") == "past_key_values.12.value"
    assert present_port(past_port(12, "value")) == "present.12.value"
    assert layer_of_past(past_port(12, "key")) == 12
    for name in ("past_key_values.x.key", "past_key_values.1.keys", "present.1.key", "past_length"):
        assert not is_past_port(name)
    assert ROWS.past_ports == ("past_key_values.0.key", "past_key_values.0.value")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": ROWS.inputs[1:]}, "inputs lack input_ids"),
        ({"inputs": ("input_ids", "attention_bias")}, r"inputs lack past_key_values\.0\.key"),
        ({"inputs": (*ROWS.inputs, "input_ids")}, "inputs names a port twice"),
        ({"outputs": ROWS.outputs[1:]}, "outputs lack logits"),
        ({"outputs": ROWS.outputs[:2]}, r"outputs lack present\.0\.value"),
        ({"inputs": (ROWS.inputs[0], *ROWS.inputs[2:])}, "inputs lack parents, which can.trees"),
        ({"can": Capabilities(gates=True)}, "inputs lack layer_gates, which can.gates needs"),
        ({"can": Capabilities(entry=True)}, "inputs lack layer_gates, which can.entry needs"),
        (
            {"can": Capabilities(entry=True), "inputs": (*ROWS.inputs, "layer_gates")},
            "inputs lack entry, which can.entry needs",
        ),
        ({"can": Capabilities(hidden=(3,))}, r"outputs lack hidden\.3, which can.hidden needs"),
        ({"can": Capabilities(row_stats=True)}, r"outputs lack stats\.argmax, which can.row_stats"),
        ({"kv": KVLayout("panels", "float16", 64, 128)}, "inputs lack sequences"),
        (
            {
                "kv": KVLayout("panels", "float16", 64, 128),
                "inputs": (*ROWS.inputs, "sequences"),
            },
            "inputs lack k_cache",
        ),
        (
            {
                "kv": KVLayout("panels", "float16", 64, 128, (1,), 64),
                "inputs": (*ROWS.inputs, "sequences", "k_cache", "v_cache", "ring_sequences"),
            },
            "inputs lack k_ring",
        ),
    ],
)
def test_a_capability_needs_its_ports(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(ROWS, **change)


def test_layouts_that_do_not_go_together() -> None:
    with pytest.raises(ConfigError, match=r"kv\.format is 'int8', expected one of float16"):
        KVLayout("rows", "int8", 64)
    with pytest.raises(ConfigError, match=r"kv\.block_nbytes is 0, expected more than 0"):
        KVLayout("panels", "int8", 64)
    with pytest.raises(ConfigError, match=r"kv\.ring_layers are \[0\], only panels have them"):
        KVLayout("rows", "float32", 64, 0, (0,), 64)
    for layers in ((1, 0), (1, 1)):
        with pytest.raises(ConfigError, match=r"kv\.ring_layers are .*, expected them to rise"):
            KVLayout("panels", "int8", 64, 128, layers, 64)
    for layers, n_rows in (((1,), 0), ((), 64)):
        with pytest.raises(ConfigError, match=rf"kv\.ring_rows is {n_rows}, expected more than 0"):
            KVLayout("panels", "int8", 64, 128, layers, n_rows)
    with pytest.raises(ConfigError, match="format is 'int3', expected one of float16, int8, k5v4"):
        find_kv_format("int3")


@pytest.mark.skipif(not library.has_library(), reason="the kernel library is not built")
def test_the_kernels_keep_to_it() -> None:
    assert cpu.PANEL == KV_PANEL
    for index, name in enumerate(kv_formats_of("panels")):
        assert kv_panels_of(name).index == index
    for name, head_size in product(("int8", "k5v4"), (8, 12, 64, 80, 128)):
        panels = kv_panels_of(name)
        of_kernels = attention_op.kv_block_nbytes(head_size, panels.index)
        assert panels.block_nbytes(head_size) == of_kernels
    results = row_stats_op.row_stats(np.zeros((3, 20), np.float32))
    assert len(results) == len(ROW_STATS)
    for result, (dtype, sizes) in zip(results, ROW_STATS.values(), strict=True):
        assert (result.dtype, result.shape) == (dtype, (3, *sizes))


def test_statistics_in_numpy_keep_to_it() -> None:
    stats = RowStats.of(np.zeros((2, 20), np.float32))
    assert [f.name for f in dataclasses.fields(stats)] == list(ROW_STATS)
    for name, (dtype, sizes) in ROW_STATS.items():
        array = getattr(stats, name)
        assert (array.dtype, array.shape) == (dtype, (2, *sizes))
    assert stats.top_ids.shape[1] == N_TOP
    assert stats_port("argmax") == "stats.argmax"
