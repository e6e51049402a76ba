"""The n-gram store: what it finds, how it grows, and what it is seeded with."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgedec.models.errors import ConfigError
from edgedec.runtime.drafting.ngrams.ngram_file import (
    MIN_BYTES,
    SEPARATOR,
    NgramFile,
)
from edgedec.runtime.drafting.ngrams.ngram_index import LONGEST, SHORTEST, NgramIndex

from .conftest import HASH, open_store

TOKENS = st.integers(0, 3)


def search(texts: list[list[int]], context: list[int]) -> tuple[int, list[list[int]]]:
    """Returns the longest match of the end of ``context`` and all that follows, latest first."""
    for length in range(min(LONGEST, len(context)), SHORTEST - 1, -1):
        suffix = context[-length:]
        found = [
            text[i + length :]
            for text in texts
            for i in range(len(text) - length)
            if text[i : i + length] == suffix
        ]
        if found:
            return length, found[::-1]
    return 0, []


def cut(following: list[list[int]], n_tokens: int) -> list[list[int]]:
    """Returns what is before the separators."""
    return [(row[: row.index(SEPARATOR)] if SEPARATOR in row else row) for row in following]


@given(st.lists(st.lists(TOKENS, min_size=1, max_size=30), max_size=4), st.lists(TOKENS))
def test_index_finds_what_a_search_finds(texts: list[list[int]], context: list[int]) -> None:
    flat = [token for text in texts for token in (*text, SEPARATOR)]
    index = NgramIndex(np.array(flat, np.uint32))
    length, places = index.find(context)
    expected_length, expected = search(texts, context)
    assert length == expected_length
    following = cut(index.following(places, 5), 5)
    assert following == [row[:5] for row in expected[:32]]


def test_index_compares_tokens_not_hashes() -> None:
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 2**31, 4000).astype(np.uint32)
    index = NgramIndex(tokens)
    for start in range(0, 3000, 100):
        context = tokens[start : start + 20].tolist()
        length, places = index.find(context)
        assert (length, places.tolist()) == (16, [start + 20 + LONGEST])
        assert index.find([1, *context[-3:-1], 2])[0] == 0


@pytest.mark.parametrize("n_recent", [0, 1, 3])
def test_old_and_recent_texts_are_found_alike(path: Path, n_recent: int) -> None:
    texts = [[1, 2, 3, 4, 5], [9, 2, 3, 4, 6], [7, 1, 2, 3, 4, 8]]
    store = open_store(path)
    for text in texts[: 3 - n_recent]:
        store.add(text)
    store = open_store(path)
    for text in texts[3 - n_recent :]:
        store.add(text)
    for context in ([0, 3, 4], [1, 2, 3, 4], [9, 2], [5, 1], [4, 4]):
        match = store.query(context, 4)
        length, expected = search(texts, context)
        assert match.length == length
        assert cut(match.following, 4) == expected


def test_texts_survive_on_disk(path: Path) -> None:
    open_store(path).add([1, 2, 3])
    open_store(path).add([4, 2, 5])
    store = open_store(path)
    assert store.n_tokens == 8
    assert store.query([1, 2], 1).following == [[3]]
    assert store.query([4, 2], 2).following == [[5, SEPARATOR]]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_oldest_texts_are_dropped(path: Path) -> None:
    store = open_store(path, MIN_BYTES)
    for first in range(0, 4000, 40):
        store.add(list(range(first, first + 40)))
        assert path.stat().st_size <= MIN_BYTES
        assert open_store(path, MIN_BYTES).query([first, first + 1], 1).length == 2
    reopened = open_store(path, MIN_BYTES)
    assert reopened.query([0, 1], 1).length == 0
    assert reopened.query([3900, 3901], 1).following == [[3902]]
    tokens = NgramFile(path, HASH, MIN_BYTES).read()
    assert tokens[0] % 40 == 0, "a text without its beginning was kept"
    assert len(list(path.parent.iterdir())) == 1


def test_a_text_larger_than_the_store_keeps_its_end(path: Path) -> None:
    store = open_store(path, MIN_BYTES)
    store.add(list(range(5000)))
    assert path.stat().st_size <= MIN_BYTES
    assert open_store(path, MIN_BYTES).query([4990, 4991], 1).following == [[4992]]


def test_a_smaller_limit_reads_the_newest(path: Path) -> None:
    store = open_store(path)
    store.add(list(range(3000)))
    smaller = open_store(path, MIN_BYTES)
    assert smaller.query([10, 11], 1).length == 0
    assert smaller.query([2990, 2991], 1).following == [[2992]]


def test_many_texts_are_merged_into_one_index(path: Path) -> None:
    store = open_store(path)
    for first in range(0, 90_000, 1000):
        store.add(list(range(first, first + 1000)))
    for first in (0, 50_000, 89_000):
        assert store.query([first, first + 1], 1).following == [[first + 2]]


@pytest.mark.parametrize("tokens", [[-1, 2], [1, SEPARATOR], [1, 2**40]])
def test_refuses_what_is_no_token(path: Path, tokens: list[int]) -> None:
    with pytest.raises(ConfigError, match="expected ids"):
        open_store(path).add(tokens)


def encode(text: str) -> list[int]:
    return list(text.encode())


def encode_many(texts: Sequence[str]) -> list[list[int]]:
    return list(map(encode, texts))


def test_seeding_reads_text_files_only(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / "a.txt").write_text("hello world")
    (folder / "sub" / "b.py").write_text("def größe(): pass")
    (folder / "empty.txt").write_text("")
    (folder / "binary.bin").write_bytes(b"ELF\0\1\2")
    (folder / "latin1.txt").write_bytes(b"s\xfc\xdf und kalt")
    (folder / "large.txt").write_text("x" * ((1 << 20) + 1))
    (folder / ".hidden").write_text("secret")
    (folder / ".git" / "config").write_text("secret")
    (tmp_path / "outside.txt").write_text("outside")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "loop").symlink_to(folder)
    calls: list[tuple[str, int, int]] = []
    store = open_store(path)
    report = store.seed(folder, encode_many, lambda *call: calls.append(call))
    assert (report.n_files, report.n_skipped) == (2, 4)
    assert report.n_tokens == len("hello world") + len("def größe(): pass".encode())
    assert calls[0] == ("seed", 0, 6)
    assert calls[-1] == ("seed", 6, 6)
    for opened in (store, open_store(path)):
        assert opened.query(encode("hello"), 3).following == [encode(" wo")]
        assert opened.query(encode("def"), 2).following == [encode(" g")]
        for text in ("secret", "outside", "kalt"):
            assert opened.query(encode(text), 1).length < 3


def test_seeding_stops_when_the_store_is_full(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for i in range(50):
        (folder / f"{i:02}.txt").write_text(f"{i:03}" * 100)
    store = open_store(path, MIN_BYTES)
    report = store.seed(folder, encode_many)
    one_by_one = path.with_name("one")
    assert open_store(one_by_one, MIN_BYTES).seed(folder, encode_many, n_at_once=1) == report
    assert one_by_one.read_bytes() == path.read_bytes()
    assert 0 < report.n_files < 10
    assert report.n_files + report.n_skipped == 50
    assert path.stat().st_size <= MIN_BYTES


def test_seeding_that_is_stopped_keeps_what_was_read(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in "abcd":
        (folder / name).write_text(f"{name} text of {name}")
    asked: list[int] = []

    def is_stopping() -> bool:
        asked.append(1)
        return len(asked) == 2

    report = open_store(path).seed(folder, encode_many, is_stopping=is_stopping)
    assert (report.n_files, report.n_skipped) == (2, 2)
    store = open_store(path)
    assert store.query(encode("b te"), 2).following == [encode("xt")]
    assert store.query(encode("c te"), 2).length < 4


def test_seeding_from_what_is_no_folder(path: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "missing", Path(__file__)):
        with pytest.raises(ConfigError, match="it is not a folder"):
            open_store(path).seed(place, encode_many)
