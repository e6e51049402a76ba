"""Zeros that a download left in a file, and zeros that a healthy file holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec.export.checkpoints.mapped_file import MappedFile
from edgedec.export.checkpoints.unwritten import StoredBytes, find_unwritten

HEADER, ROW, N_ROWS, VECTOR = 100, 6000, 8, 9000
MATRIX = ROW * N_ROWS
START = HEADER + MATRIX  # of the vector
END = START + VECTOR


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        (0, 0, []),
        (HEADER + 2 * ROW, HEADER + 4 * ROW, []),  # rows of a healthy file
        (HEADER + 2 * ROW - 3, HEADER + 4 * ROW + 5, []),  # whose neighbours hold zeros
        (HEADER + 2 * ROW + 900, HEADER + 4 * ROW, ["matrix"]),
        (HEADER + 2 * ROW, HEADER + 4 * ROW + 900, ["matrix"]),
        (HEADER + ROW + 100, HEADER + ROW + 900, []),  # short, in the middle
        (START, START + 5000, []),  # half of a bias
        (START - 5 * ROW + 700, END, ["matrix"]),
        (START + 500, END, ["vector"]),
        (END - 80, END, ["vector"]),
        (END - 60, END, []),
        (HEADER, END, []),  # all: said elsewhere
    ],
)
def test_zeros_that_no_download_wrote(
    tmp_path: Path, first: int, last: int, names: list[str]
) -> None:
    data = np.random.default_rng(0).integers(1, 256, END, np.uint8)
    data[first:last] = 0
    (tmp_path / "m").write_bytes(data.tobytes() + bytes(20))
    file = MappedFile(tmp_path / "m")
    found = find_unwritten(
        [
            StoredBytes(file, "vector", START, VECTOR, VECTOR),
            StoredBytes(file, "matrix", HEADER, MATRIX, ROW),
        ]
    )
    assert [line.split()[2] for line in found] == names
    assert all(line.endswith(f"from byte {first} to byte {last} of the file") for line in found)
