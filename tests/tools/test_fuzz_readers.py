"""Readers of strangers' files on what fuzzing kept, and on some edits of it.

`tools/fuzz/fuzz_readers.py` searches on from there, for as long as one likes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FUZZ = Path(__file__).parents[2] / "tools/fuzz"
KEPT = sorted((FUZZ / "corpus").glob("*/*"))
N_EDITED = 60  # inputs made of each seed

pytestmark = [pytest.mark.robustness, pytest.mark.slow]


@pytest.fixture(scope="module")
def fuzz() -> Iterator[Any]:
    """The modules of the fuzzing tool."""
    sys.path.insert(0, str(FUZZ))
    import fuzz_readers
    import readers

    yield readers.READERS, fuzz_readers
    sys.path.remove(str(FUZZ))


def test_every_reader_has_inputs(fuzz: Any) -> None:
    assert {path.parent.name for path in KEPT} == set(fuzz[0])


def test_whole_inputs_are_read(fuzz: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that starts from what is refused at once finds nothing."""
    readers, tool = fuzz
    monkeypatch.setattr(sys.modules["readers"], "_refused_in_one_line", lambda read: read())
    whole = [path for path in KEPT if path.name in tool.SEEDS]
    assert len(whole) == len(tool.SEEDS)
    for path in whole:
        readers[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_kept_inputs_and_edits_of_them(fuzz: Any, path: Path) -> None:
    readers, tool = fuzz
    read, content = readers[path.parent.name], path.read_bytes()
    read(content)
    rng = random.Random(path.name)
    for _ in range(N_EDITED if path.name in tool.SEEDS else 2):
        edited = tool.json_edited(content, rng) if rng.random() < 0.5 else None
        read(edited or scratched(content, rng))


def scratched(content: bytes, rng: random.Random) -> bytes:
    """Returns ``content`` with some bytes replaced, left out or repeated."""
    new = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(new) + 1)
        stop = start + rng.choice((1, 1, 4, 8, 60))
        new[start:stop] = rng.choice((b"", rng.randbytes(stop - start), new[start:stop] * 2))
    return bytes(new)
