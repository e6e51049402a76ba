"""Mamba-2 and the gated delta rule against NumPy in float64, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest

from edgedec.models.recurrence import Recurrence, state_outputs

from ..doors import state_space_op

KINDS = {
    "mamba2": Recurrence("mamba2", 4, n_heads=4, head_size=24, n_groups=2, state_size=20),
    "delta": Recurrence("delta", 4, n_heads=4, head_size=64, n_groups=2, state_size=32),
    "tiled": Recurrence(
        "delta", 4, n_heads=6, head_size=20, n_groups=2, state_size=32, is_tiled=True
    ),
}
N_KEPT, PAST, ROWS = 48, 30, 9


@pytest.fixture(params=KINDS)
def case(request, rng):
    own = KINDS[request.param]
    rows = rng.standard_normal((PAST + ROWS, own.row_size)).astype(np.float32)
    heads = {"a_log": (-1, 1), "dt_bias": (-1, 1)}
    weights = {
        "conv.weight": rng.standard_normal((own.conv_channels, 1, 4)).astype(np.float32),
        "conv.bias": rng.standard_normal(own.conv_channels).astype(np.float32),
        **{
            name: rng.uniform(*span, own.n_heads).astype(np.float32) for name, span in heads.items()
        },
    }
    if own.kind == "mamba2":
        weights["skip"] = rng.standard_normal(own.n_heads).astype(np.float32)
    parents = np.array([-1, 0, 0, 1, -1, 3, 3, 2, 7], np.int64)
    return own, rows, parents, weights


def sizes_of(own):
    return state_space_op.StateSpaceSizes(
        own.n_heads, own.n_groups, own.head_size, own.state_size, own.kind == "delta", own.is_tiled
    )


def run(case, known=0, **options):
    own, rows, parents, weights = case
    kept = options.pop("kept", None)
    if kept is None:
        kept = np.zeros((N_KEPT, own.row_size), np.float32)
        kept[:PAST] = rows[:PAST]
    sizes = sizes_of(own)
    assert sizes.n_state_floats == own.n_state_floats
    of_layer = state_space_op.StateSpaceWeights(
        weights["conv.weight"][:, 0], weights["a_log"], weights["dt_bias"], weights["conv.bias"],
        weights.get("skip"),
    )  # fmt: skip
    x, gates = np.split(rows[PAST + known :], [own.conv_channels], axis=1)
    return state_space_op.state_space(
        np.ascontiguousarray(x), np.ascontiguousarray(gates), parents, sizes, of_layer, kept, PAST,
        **options,
    )  # fmt: skip


def test_against_float64(case, isa):
    own, rows, parents, weights = case
    precise = {name: values.astype(np.float64) for name, values in weights.items()}
    expected = state_outputs(own, rows.astype(np.float64), parents.tolist(), precise)
    found = run(case, isa=isa)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * expected.std())


def test_same_bits_on_every_isa_and_number_of_threads(case, simd, same_bits):
    assert same_bits(run(case, isa=simd, n_threads=3), run(case, isa="scalar"))


def test_states_stand_for_all_rows_before_them(case, isa, same_bits):
    """Read where an earlier pass wrote, a state gives the bits that replaying gives."""
    whole = run(case, isa=isa)
    own, rows, *_ = case
    for base in (3, 17, PAST):
        state = np.full(own.n_state_floats, np.nan, np.float32)
        kept = np.zeros((N_KEPT, own.row_size), np.float32)
        kept[:PAST] = rows[:PAST]
        earlier = (own, rows[: PAST + 1], np.array([-1], np.int64), case[3])
        write_behind(earlier, base, state, kept.copy(), isa)
        kept[: max(0, base - own.look_back)] = np.nan
        assert same_bits(run(case, base=base, read=state, kept=kept, isa=isa), whole)


def write_behind(case, base, state, kept, isa):
    """Writes the state behind ``base`` tokens."""
    own, rows, parents, weights = case
    sizes = sizes_of(own)
    of_layer = state_space_op.StateSpaceWeights(
        weights["conv.weight"][:, 0], weights["a_log"], weights["dt_bias"], weights["conv.bias"],
        weights.get("skip"),
    )  # fmt: skip
    x, gates = np.split(rows[base : base + 1], [own.conv_channels], axis=1)
    state_space_op.state_space(
        np.ascontiguousarray(x), np.ascontiguousarray(gates), parents, sizes, of_layer, kept, base,
        write=state, write_node=-1, isa=isa,
    )  # fmt: skip


def test_rows_do_not_depend_on_how_passes_cut_them(case, isa, same_bits):
    own, rows, parents, weights = case
    whole = run(case, isa=isa)
    kept = np.zeros((N_KEPT, own.row_size), np.float32)
    kept[:PAST] = rows[:PAST]
    for n in range(1, ROWS + 1):
        part = (own, rows[: PAST + n], parents[:n], weights)
        alone = run(part, known=n - 1, kept=kept, isa=isa)
        assert same_bits(alone, whole[n - 1 : n])
