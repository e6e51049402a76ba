"""Tables of what passes cost: between what was measured, corrected by use, kept, and broken."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from edgedec.runtime.decoding.cost_table import ROWS, USUAL, CostTable
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import feed

from ..conftest import ToySession

FLAT = {1: 10.0, 2: 10.5, 4: 11.0, 8: 14.0, 16: 23.0}


def test_costs_between_measured_sizes_lie_between() -> None:
    table = CostTable(dict(FLAT))
    assert table.ms(3) == pytest.approx(10.75)
    assert table.ms(20) == pytest.approx(27.5)
    for _ in range(100):
        table.observe(1, 20.0)
    assert table.ms(1) == pytest.approx(20.0, rel=0.02)
    assert table.ms(8) >= table.ms(1)


def test_sizes_below_the_least_cost_as_much_as_that() -> None:
    table = CostTable({2: 10.0, 6: 14.0, 8: 20.0})
    assert [table.ms(m) for m in (1, 2, 3, 6, 7)] == pytest.approx([10.0, 10.0, 11.0, 14.0, 17.0])


def test_a_disturbed_pass_moves_the_table_little() -> None:
    table = CostTable(dict(FLAT))
    table.observe(1, 10_000.0)
    assert table.ms(4) < 11.0 * 1.11


@pytest.mark.parametrize(
    ("n_rows", "share", "factor", "own"),
    [
        # A fifth of what it was late for all sizes; a twentieth, of a tenth at most, for its own.
        (1, 1.2, 1.04, {}),
        (1, 9.0, 1.1, {}),
        (1, 1 / 9, 14 / 15, {}),
        (4, 1.4, 1.08, {4: 1.005}),
        (4, 1.02, 1.004, {4: 1.001}),
        (4, 0.7, 0.94, {4: 0.995}),
        (3, 1.5, 1.1, {2: 1.0025, 4: 1.0025}),
        (9, 1.5, 1.1, {8: 1.005}),
    ],
)
def test_what_one_pass_teaches(
    n_rows: int, share: float, factor: float, own: dict[int, float]
) -> None:
    table = CostTable({1: 10.0, 2: 12.0, 4: 13.0, 8: 20.0})
    row_ms = {m: factor * ms * own.get(m, 1.0) for m, ms in table.row_ms.items()}
    table.observe(n_rows, share * table.ms(n_rows))
    assert table.row_ms == pytest.approx(row_ms)
    assert table.scaled(2.0).row_ms == pytest.approx({m: 2 * ms for m, ms in row_ms.items()})


@pytest.mark.parametrize("ms", [0.0, -1.0, math.inf, math.nan])
def test_times_that_make_no_sense_teach_nothing(ms: float) -> None:
    table = CostTable({1: 10.0, 4: 13.0})
    table.observe(4, ms)
    assert table.row_ms == {1: 10.0, 4: 13.0}
    zero = CostTable({1: 0.0, 4: 0.0})
    zero.observe(4, 5.0)
    assert zero.row_ms == {1: 0.0, 4: 0.0}


def test_no_size_costs_less_than_the_first() -> None:
    table = CostTable({1: 10.0, 2: 10.0, 4: 10.001})
    table.observe(4, 1.0)
    assert table.row_ms[1] == table.row_ms[2] == table.row_ms[4]


@pytest.mark.parametrize("n_rows", [1, 4, 8])
def test_what_slows_passes_of_one_size_down_slows_all_down(n_rows: int) -> None:
    """Drafts are judged by one row's time, also where no pass has one row for long."""
    table = CostTable({1: 10.0, 4: 12.0, 8: 20.0})
    for _ in range(30):
        table.observe(n_rows, 2 * {1: 10.0, 4: 12.0, 8: 20.0}[n_rows])
    assert table.ms(1) == pytest.approx(20.0, rel=0.07)
    assert table.ms(8) / table.ms(1) == pytest.approx(2.0, rel=0.07)


def test_a_few_disturbed_passes_do_not_keep_a_size_from_being_tried() -> None:
    table = CostTable(dict(FLAT))
    for _ in range(3):
        table.observe(4, 100.0)
    assert table.ms(4) / table.ms(1) < 1.2


def test_of_one_size_all_cost_the_same() -> None:
    assert CostTable({4: 10.0}).ms(9) == 10.0


@pytest.mark.parametrize(("room", "sizes"), [(256, ROWS), (6, (1, 2, 3, 4, 6)), (5, (1, 2, 3, 4))])
def test_sizes_that_the_context_has_no_room_for_are_left_out(
    room: int, sizes: tuple[int, ...]
) -> None:
    session = ToySession(997, context=room + 3)
    run_passes(feed(session, [1, 2, 3]))
    assert tuple(run_passes(CostTable.measure(session)).row_ms) == sizes
    assert session.tokens == [1, 2, 3]


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("row_ms", "is_sane"),
    [
        ({1: 999_999.0, 4096: 0.001}, True),
        ({1: 1e6}, False),
        ({1: 0.0}, False),
        ({0: 1.0}, False),
        ({1: 1.0, 4097: 2.0}, False),
    ],
)
def test_costs_that_cannot_be_are_measured_anew(
    row_ms: dict[int, float], is_sane: bool, tmp_path: Path
) -> None:
    path = tmp_path / "costs.json"
    CostTable(row_ms).save(path, "f")
    found = CostTable.load(path, "f")
    assert (found is not None) == is_sane
    assert found is None or found.row_ms == row_ms


@pytest.mark.robustness
@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"fingerprint": "f"}',
        '{"fingerprint": "f", "row_ms": {"1": 3}}',
        *(
            f'{{"fingerprint": "f", "sizes": {list(ROWS)}, "n_seen": {{"1": 1}}, "row_ms": {ms}}}'
            for ms in ('{"a": 1}', '{"1": -3}', "{}", '{"1": NaN}', "7", '{"1": 2, "2": 2}')
        ),
        *(
            f'{{"fingerprint": "f", "sizes": {list(ROWS)}, "n_seen": {n}, "row_ms": {{"1": 3}}}}'
            for n in ("7", "null", "{}", '{"1": -1}', '{"1": NaN}', '{"1": "x"}')
        ),
    ],
)
def test_a_broken_table_is_measured_anew(text: str, tmp_path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(text)
    assert CostTable.load(path, "f") is None


def test_a_measurement_that_was_disturbed_is_corrected_by_what_passes_take() -> None:
    disturbed = {1: 10.0, 2: 12.0, 4: 15.0, 8: 20.0, 16: 30.0}
    table = CostTable(disturbed)
    for _ in range(100):
        table.observe(1, 10.0)
        table.observe(8, 14.0)
    assert table.ms(8) == pytest.approx(14.0, rel=0.05)
    assert table.ms(4) <= table.ms(8)  # though never tried
    assert table.ms(16) > 25
    for _ in range(60):
        table.observe(1, 10.0)
        table.observe(6, 30.0)
    assert table.ms(6) == pytest.approx(30.0, rel=0.1)
    assert [table.ms(m) for m in range(1, 17)] == sorted(table.ms(m) for m in range(1, 17))


def test_when_memory_gets_faster_and_arithmetic_slower_passes_show_it_in_time() -> None:
    table = CostTable({1: 25.0, 2: 26.0, 4: 27.0, 8: 31.0})
    for _ in range(150):
        table.observe(1, 20.0)
        table.observe(4, 30.0)
        table.observe(8, 40.0)
    assert [table.ms(m) for m in (1, 4, 8)] == pytest.approx([20.0, 30.0, 40.0], rel=0.05)


AVX2 = {1: 30.0, 2: 34.0, 3: 43.0, 4: 53.0, 6: 71.0, 8: 89.0, 9: 110.0, 16: 175.0, 17: 196.0}


def test_the_least_of_the_first_passes_sets_the_scale_of_all_sizes() -> None:
    """The first finds memory cold, and texts that always draft may never show another."""
    table = CostTable.unknown()
    for ms in (45.0, 30.0, 33.0):
        assert not table.has_scale
        table.observe(1, ms)
    assert table.has_scale
    assert table.ms(1) == pytest.approx(30.0)
    assert [ms / 30.0 for ms in table.row_ms.values()] == pytest.approx(USUAL)


@pytest.mark.parametrize("size", [2, 4, 8])
def test_the_first_pass_of_a_size_says_what_larger_ones_take_beyond_one_row(size: int) -> None:
    table, guessed = CostTable.unknown(), dict(zip(ROWS, USUAL, strict=True))
    for _ in range(3):
        table.observe(1, 10.0)
    dear_ms = 10.0 * (1 + 1.4 * (guessed[size] - 1))
    table.observe(size, dear_ms)
    assert table.ms(size) == pytest.approx(dear_ms)
    assert table.ms(1) == pytest.approx(10.0)
    assert table.ms(17) > 1.1 * 10.0 * guessed[17]
    assert list(table.row_ms.values()) == sorted(table.row_ms.values())


def test_a_few_passes_of_each_size_make_a_table() -> None:
    table = CostTable.unknown()
    for size in (1, 1, 1, 2, 1, 5, 3, 8, 1, 4, 16, 2, 9, 6, 17, 1):
        table.observe(size, CostTable(AVX2).ms(size))
    assert table.row_ms == pytest.approx(AVX2, rel=0.1)


def test_a_size_among_known_ones_changes_no_others_by_one_late_pass() -> None:
    """Its first pass came when another program computed: nobody would try the others again."""
    table = CostTable.unknown()
    for size in (1, 1, 1, *(1, 4, 8, 16) * 20):
        table.observe(size, AVX2[size])
    before = dict(table.row_ms)
    table.observe(3, 3 * AVX2[3])
    assert table.ms(4) / table.ms(1) == pytest.approx(before[4] / before[1], rel=0.03)


def test_sizes_that_nobody_tries_stay_near_those_that_are_tried() -> None:
    """However often these are corrected."""
    table, noise = CostTable.unknown(), np.random.default_rng(0)
    for size in (1, 1, 1, *(1, 2, 3, 4, 6) * 100):
        table.observe(size, AVX2[size] * float(noise.uniform(0.9, 1.3)))
    assert AVX2[8] / 1.5 < table.ms(8) < 1.5 * AVX2[8]
    assert AVX2[17] / 1.5 < table.ms(17) < 1.5 * AVX2[17]


def test_a_kept_table_learns_faster_than_one_that_has_seen_much(tmp_path: Path) -> None:
    table, path = CostTable.unknown(), tmp_path / "costs.json"
    for _ in range(1000):
        table.observe(1, 10.0)
    table.save(path, "f")
    kept = CostTable.load(path, "f")
    assert kept is not None
    assert kept.row_ms == table.row_ms
    assert kept.n_passes == pytest.approx(8)


def test_no_token_is_measured_twice() -> None:
    """Rows that are alike choose the same experts: their passes would be too cheap."""
    passes, seen = CostTable.measure(ToySession(997), repetitions=2), []
    with contextlib.suppress(StopIteration):
        wanted = next(passes)
        while True:
            seen += wanted.tree.tokens
            wanted = passes.send(wanted.sequence.run(wanted))
    assert len(seen) == 2 * (sum(ROWS) + 1)
    assert len(set(seen)) == len(seen)
    assert 0 <= min(seen) < 10
    assert 987 <= max(seen) < 997


def test_the_least_of_each_size_counts_and_fewer_rows_never_cost_more() -> None:
    """The first pass is cold, one of 4 rows is disturbed twice, one of 8 once."""
    sweeps = [
        (90, 12, 13, 99, 17, 20, 25, 30, 31, 10),
        (11, 12, 70, 98, 17, 60, 25, 30, 31, 10),
    ]
    table = _measured(sweeps)
    least = {1: 10.0, 2: 12.0, 3: 13.0, 4: 17.0, 6: 17.0, 8: 20.0, 9: 25.0, 16: 30.0, 17: 31.0}
    assert table.row_ms == pytest.approx(least)


def _measured(sweeps: list[tuple[float, ...]]) -> CostTable:
    """Returns what is measured of passes that take so many milliseconds."""
    passes = CostTable.measure(ToySession(997))
    wanted = next(passes)
    try:
        for ms in itertools.chain.from_iterable(sweeps):
            assert wanted.is_alone
            rows = wanted.sequence.run(wanted)
            rows.ms = ms
            wanted = passes.send(rows)
    except StopIteration as end:
        return end.value
    raise AssertionError("more passes than times")


def test_a_text_among_others_pays_for_what_its_rows_add_to_the_pass() -> None:
    """Three others have four rows of the pass and get three tokens."""
    own = CostTable(dict(FLAT)).shared(4, 3.0)
    plain_ms = CostTable(dict(FLAT)).ms(5)
    assert own.ms(1) == pytest.approx(plain_ms / 4)  # as much as each of the others
    assert own.ms(4) - own.ms(1) == pytest.approx(CostTable(dict(FLAT)).ms(8) - plain_ms)


@pytest.mark.parametrize("n_others", [0, 1, 3, 5, 8, 20])
def test_costs_among_others_change_where_those_of_passes_do(n_others: int) -> None:
    table = CostTable({1: 10.0, 4: 11.0, 8: 14.0, 9: 20.0, 16: 24.0, 17: 30.0})
    own = table.shared(n_others, n_others)
    for m in range(1, 20):
        added = table.ms(n_others + m) - table.ms(n_others + 1)
        assert own.ms(m) - own.ms(1) == pytest.approx(added)


@pytest.mark.parametrize("n_others", [1, 3, 7])
@pytest.mark.parametrize("chance", [0.05, 0.2, 0.4, 0.8])
def test_a_draft_pays_at_shared_costs_where_all_texts_together_gain(
    n_others: int, chance: float
) -> None:
    table = CostTable(dict(FLAT))
    own = table.shared(n_others, n_others)
    together = (n_others + 1 + chance) / table.ms(n_others + 2)
    without = (n_others + 1) / table.ms(n_others + 1)
    assert ((1 + chance) / own.ms(2) > 1 / own.ms(1)) == (together > without)


def test_tables_of_other_sizes_are_measured_anew(tmp_path) -> None:
    path = tmp_path / "costs.json"
    CostTable(dict(FLAT)).save(path, "this")
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "sizes": [1, 8]}))
    assert CostTable.load(path, "this") is None


def test_tables_of_other_devices_are_not_used(tmp_path) -> None:
    path = tmp_path / "deep" / "costs.json"
    CostTable(dict(FLAT)).save(path, "this")
    assert CostTable.load(path, "other") is None
    found = CostTable.load(path, "this")
    assert found is not None
    assert found.row_ms == FLAT
