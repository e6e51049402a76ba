"""Rounded rows of session files: how far they are from what was saved, and what is refused."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.models.errors import SessionError
from edgedec.models.kv_formats import kv_panels_of
from edgedec.runtime.sequences.rounded_rows import restored, rounded
from edgedec.runtime.sequences.session_file import (
    MAGIC,
    PAGE,
    Expected,
    SavedModel,
    read_states,
    write_states,
)
from edgedec.runtime.sequences.state import SessionState

Array = np.ndarray[Any, np.dtype[Any]]
N, LAYERS, HEADS, SIZE = 700, 3, 4, 32
TOKENS = tuple(i % 90 for i in range(N))


def float_rows(n: int = N, seed: int = 0, dtype: type[Any] = np.float16) -> dict[str, Array]:
    """Returns rows whose channels vary together, far from zero, with first tokens far out."""
    rng = np.random.default_rng(seed)
    rows = {}
    for name in ("keys", "values"):
        mixing = rng.standard_normal((LAYERS, 1, SIZE, SIZE)) * 0.8 ** np.arange(SIZE)[:, None]
        x = rng.standard_normal((LAYERS, HEADS, N, SIZE)) @ mixing
        x += 10 * rng.standard_normal((LAYERS, HEADS, 1, SIZE))
        x[:, :, :3] *= 50
        rows[name] = x[:, :, :n].astype(dtype)
    return rows


def saved(rows: dict[str, Array], n: int = N) -> SavedModel:
    return SavedModel("aim", SessionState(TOKENS[:n], 0, rows))


def expected(rows: dict[str, Array]) -> Expected:
    return Expected("aim", N, 90, 1 << 20, SessionState((), 0, rows).layout)


def read(path: Path, rows: dict[str, Array]) -> SavedModel:
    return read_states(path, {"target": expected(rows)})["target"]


def steps_of(rows: dict[str, Array]) -> dict[str, list[float]]:
    """Returns the steps that the module's text states, of each layer, in float64."""
    spreads = {}
    for name, array in rows.items():
        x = array[:, :, 4:].astype(np.float64)
        x -= x.mean(axis=2, keepdims=True)
        spreads[name] = np.sqrt(np.square(x).mean(axis=(1, 2, 3)))
    key_step = 0.3 * float(np.median(spreads["keys"]))
    return {"keys": [key_step] * LAYERS, "values": [0.6 * s for s in spreads["values"]]}


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_rounded_rows_are_half_a_step_away_along_each_axis(
    tmp_path: Path, dtype: type[Any]
) -> None:
    rows = float_rows(dtype=dtype)
    write_states(tmp_path / "s", {"target": saved(rows)}, is_rounded=True)
    n_whole = sum(array.nbytes for array in rows.values())
    assert (tmp_path / "s").stat().st_size < 0.5 * n_whole
    found = read(tmp_path / "s", rows)
    assert found.is_rounded
    assert found.state.tokens == TOKENS
    for name, steps in steps_of(rows).items():
        got, wanted = found.state.kv_rows[name], rows[name]
        assert got.dtype == dtype
        np.testing.assert_array_equal(got[:, :, :4], wanted[:, :, :4])
        error = got.astype(np.float64) - wanted.astype(np.float64)
        for step, of_layer, layer in zip(steps, error, wanted, strict=True):
            # All 128 channels of a token: at most half a step along each of their axes, which are
            # at right angles but for the rounding of their 128 numbers to 1/127 of the largest.
            lengths = np.sqrt(np.square(of_layer).sum(axis=(0, 2)))
            least = np.abs(layer.astype(np.float64)).max() * np.finfo(dtype).eps
            assert lengths.max() <= np.sqrt(128) * (step / 2 * (1 + 128 / 254) + least)
            assert np.sqrt(np.square(lengths).mean() / 128) <= step / np.sqrt(12) * 1.05 + least


def test_nothing_is_rounded_twice(tmp_path: Path) -> None:
    """A text that goes on keeps what was rounded of it, and rounds the rest when it is long."""
    path, rows = tmp_path / "s", float_rows()
    n_first, n_second = 520, 600
    short = {name: array[:, :, :n_first] for name, array in rows.items()}
    write_states(path, {"target": saved(short, n_first)}, is_rounded=True)
    first = read(path, rows).state.kv_rows
    for n, n_exact in ((n_second, n_second - n_first), (N, N - n_first)):
        longer = {
            name: np.concatenate([first[name], array[:, :, n_first:n]], axis=2)
            for name, array in rows.items()
        }
        write_states(path, {"target": saved(longer, n)}, is_rounded=True)
        again = read(path, rows).state.kv_rows
        for name in rows:
            np.testing.assert_array_equal(again[name][:, :, :n_first], first[name])
            np.testing.assert_array_equal(
                again[name][:, :, n_first : n_first + n_exact], longer[name][:, :, n_first:]
            )
    size = path.stat().st_size
    write_states(path, {"target": saved(dict(again))}, is_rounded=True)
    assert path.stat().st_size == size
    other = replace(saved(float_rows(seed=1)), fingerprint="other")
    write_states(path, {"target": other}, is_rounded=True)
    with pytest.raises(SessionError, match="another target model"):
        read(path, rows)


def test_a_damaged_older_file_is_not_gone_on_with(tmp_path: Path) -> None:
    path, rows = tmp_path / "s", float_rows()
    write_states(path, {"target": saved(rows)}, is_rounded=True)
    whole = path.read_bytes()
    path.write_bytes(whole[:-PAGE] + bytes(PAGE))
    write_states(path, {"target": saved(rows)}, is_rounded=True)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(("n", "is_rounded"), [(0, False), (1, False), (50, False), (N, True)])
def test_short_texts_and_other_states_stay_to_the_bit(
    tmp_path: Path, n: int, is_rounded: bool
) -> None:
    rng = np.random.default_rng(0)
    rows = float_rows(n)
    rows["latest_keys"] = rng.standard_normal((2, 1, min(n, 20), 8)).astype(np.float16)
    rows["latest_recurrent"] = rng.standard_normal((2, 1, min(n, 20), 9)).astype(np.float32)
    write_states(tmp_path / "s", {"target": saved(rows, n)}, is_rounded=True)
    found = read(tmp_path / "s", rows)
    assert found.is_rounded == is_rounded
    for name, array in rows.items():
        if name.startswith("latest") or not is_rounded:
            np.testing.assert_array_equal(found.state.kv_rows[name], array)


@pytest.mark.parametrize("kv_format", ["int8", "k5v4"])
def test_codes_are_not_rounded_again(tmp_path: Path, kv_format: str) -> None:
    numbers = float_rows(dtype=np.float32)
    rows = kv_panels_of(kv_format).rows_of(numbers["keys"], numbers["values"])
    with pytest.raises(SessionError, match=r"cannot be rounded .*save the session as it is"):
        write_states(tmp_path / "s", {"target": saved(rows)}, is_rounded=True)
    assert list(tmp_path.iterdir()) == []
    write_states(tmp_path / "s", {"target": saved(rows)})
    for name, array in read(tmp_path / "s", rows).state.kv_rows.items():
        np.testing.assert_array_equal(array, rows[name])


@pytest.mark.robustness
@pytest.mark.parametrize("value", [np.nan, np.inf, 65504.0, 0.0])
def test_numbers_of_any_size_come_back(tmp_path: Path, value: float) -> None:
    rows = float_rows()
    rows["keys"][1, 2, 100:103] = value
    if value == 0:
        rows = {name: np.zeros_like(array) for name, array in rows.items()}
    write_states(tmp_path / "s", {"target": saved(rows)}, is_rounded=True)
    got = read(tmp_path / "s", rows).state.kv_rows["keys"][1, 2, 100:103]
    np.testing.assert_array_equal(got, rows["keys"][1, 2, 100:103])


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "expected 700 rows"),
        ([[700, 10]], "expected 700 rows"),
        ([[700, -10, True]], "expected 700 rows"),
        ([[700, 10, 1]], "expected 700 rows"),
        ([[600, 10, True]], "expected 700 rows"),
        ([[700, 10, False]], "with 700 rows of 10 bytes"),
        ([[700, 2**30, True]], "bytes, expected"),
    ],
)
def test_hostile_parts(tmp_path: Path, parts: Any, message: str) -> None:
    path, rows = tmp_path / "s", float_rows()
    write_states(path, {"target": saved(rows)}, is_rounded=True)
    data = path.read_bytes()
    (n_header,) = struct.unpack_from("<I", data, 12)
    header = json.loads(data[48 : 48 + n_header])
    header["models"]["target"]["kv_rows"]["keys"]["parts"] = parts
    encoded = json.dumps(header).encode()
    front = struct.pack("<8sII32s", MAGIC, 2, len(encoded), sha256(encoded).digest()) + encoded
    rest = data[48 + n_header + (-(48 + n_header) % PAGE) :]
    path.write_bytes(front + bytes(-len(front) % PAGE) + rest)
    with pytest.raises(SessionError, match=message) as caught:
        read(path, rows)
    assert "\n" not in str(caught.value)


@given(st.data())
@pytest.mark.robustness
def test_damaged_rows_are_refused_or_of_the_right_shape(data: st.DataObject) -> None:
    """Whoever makes checksums of their own gets no further than to wrong numbers."""
    rows = {name: array[:1, :, :520] for name, array in float_rows().items()}
    packed = bytearray(rounded(rows, 0, 520)["keys"])
    at = data.draw(st.integers(0, len(packed) - 1))
    packed[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(packed)))
    out = np.zeros_like(rows["keys"])
    for content in (bytes(packed), bytes(packed[:cut]), bytes(packed) + b"x"):
        try:
            restored(content, out)
        except ValueError:
            continue
        assert content == bytes(packed)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_rounded_rows import float_rows, saved, write_states
for seed in range(6):
    write_states(Path(sys.argv[1]), {"target": saved(float_rows(seed=seed))}, is_rounded=True)
"""


@pytest.mark.robustness
def test_two_processes_write_one_file(tmp_path: Path) -> None:
    """The file is one's or the other's at any time."""
    path, rows = tmp_path / "s", float_rows()
    write_states(path, {"target": saved(rows)}, is_rounded=True)
    command = [sys.executable, "-c", WRITER, str(path), str(Path(__file__).parent)]
    writers = [subprocess.Popen(command) for _ in range(2)]
    while any(writer.poll() is None for writer in writers):
        assert read(path, rows).is_rounded
    assert [writer.returncode for writer in writers] == [0, 0]
    assert list(tmp_path.iterdir()) == [path]
