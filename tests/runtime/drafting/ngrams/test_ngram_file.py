"""The file of an n-gram store: what is refused, what writers share, and what it survives."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import sys
from pathlib import Path

import numpy as np
import pytest

from edgedec.models.errors import BundleError, ConfigError
from edgedec.runtime.drafting.ngrams.ngram_file import (
    DEFAULT_MAX_BYTES,
    MIN_BYTES,
    SEPARATOR,
    NgramFile,
    describe,
)
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore

from .conftest import HASH, open_store

OTHER_HASH = "cd" * 32
HEADER_BYTES = 64


@pytest.mark.robustness
@pytest.mark.parametrize("n_torn", [1, 2, 3])
def test_a_torn_token_is_ignored_and_later_cut(path: Path, n_torn: int) -> None:
    open_store(path).add([1, 2, 3])
    with path.open("ab") as file:
        file.write(b"\x07" * n_torn)
    store = open_store(path)
    assert store.query([1, 2], 1).following == [[3]]
    store.add([1, 2, 4])
    assert open_store(path).query([1, 2], 1).following == [[4], [3]]
    assert path.stat().st_size % 4 == 0


def write_header(path: Path, fmt: str, value: int, offset: int) -> None:
    """Replaces a number in a store's header."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(struct.pack(fmt, value))


@pytest.mark.robustness
def test_foreign_files_are_refused(path: Path) -> None:
    open_store(path).add([1, 2, 3])
    content = path.read_bytes()
    for broken in (b"", b"edngram", b"\x80\x04" + content):
        path.write_bytes(broken)
        with pytest.raises(BundleError, match="is not an n-gram store: name another file, or"):
            open_store(path)
        assert path.read_bytes() == broken, "what is not ours must not be touched"
    path.write_bytes(content)
    for version in (1, 2, 4):
        write_header(path, "<I", version, 8)
        with pytest.raises(BundleError, match=f"has version {version}, expected 3: delete it"):
            open_store(path)
    for max_bytes in (0, MIN_BYTES - 1, 1 << 63):
        path.write_bytes(content)
        write_header(path, "<Q", max_bytes, 24)
        with pytest.raises(BundleError, match="is damaged: its checksum is wrong"):
            open_store(path)
    path.write_bytes(content)
    with pytest.raises(BundleError, match="another tokenizer"):
        NgramStore.open(path, OTHER_HASH)


@pytest.mark.robustness
@pytest.mark.parametrize("n_left", [8, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 4])
def test_a_truncated_store_is_refused(path: Path, n_left: int) -> None:
    open_store(path).add([1, 2, 3])
    broken = path.read_bytes()[:n_left]
    path.write_bytes(broken)
    expected = HEADER_BYTES if n_left < HEADER_BYTES else HEADER_BYTES + 16
    with pytest.raises(BundleError, match=f"truncated to {n_left} bytes, .* least {expected}"):
        open_store(path)
    with pytest.raises(BundleError, match="is truncated"):
        describe(path)
    assert path.read_bytes() == broken


@pytest.mark.robustness
def test_no_number_of_tokens_reads_beyond_the_file(path: Path) -> None:
    open_store(path).add([1, 2, 3])
    write_header(path, "<Q", (1 << 64) - 1, 16)
    with pytest.raises(BundleError, match="is truncated"):
        open_store(path)


@pytest.mark.robustness
def test_a_store_replaced_by_something_else_is_not_written_to(path: Path) -> None:
    store = open_store(path)
    path.write_bytes(b"somebody's novel, which is longer than any header of ours would ever be")
    before = path.read_bytes()
    with pytest.raises(BundleError, match="is not an n-gram store"):
        store.add([1, 2, 3])
    assert path.read_bytes() == before


@pytest.mark.robustness
@pytest.mark.parametrize("n_tokens", [3, 1022, 1023, 2500])
def test_every_flipped_bit_is_noticed(path: Path, n_tokens: int) -> None:
    store = open_store(path)
    store.add(list(range(n_tokens // 2)))
    store.add(list(range(n_tokens - n_tokens // 2)))
    content = path.read_bytes()
    rng = np.random.default_rng(n_tokens)
    places = [*range(HEADER_BYTES), *rng.integers(HEADER_BYTES, len(content), 100).tolist()]
    for place in [*places, len(content) - 1]:
        broken = bytearray(content)
        broken[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(broken)
        with pytest.raises(BundleError):
            open_store(path)
        assert path.read_bytes() == broken


@pytest.mark.parametrize("lengths", [[1022], [1023], [1024], [500, 522, 1, 5], [5000, 1, 1023]])
def test_blocks_begin_and_end_anywhere(path: Path, lengths: list[int]) -> None:
    store = open_store(path)
    texts = [list(range(100 * i, 100 * i + n)) for i, n in enumerate(lengths)]
    for text in texts:
        store.add(text)
    held = NgramFile(path, HASH).read()
    assert held.tolist() == [token for text in texts for token in [*text, SEPARATOR]]


@pytest.mark.robustness
def test_a_file_of_huge_size_is_not_read_whole(path: Path) -> None:
    open_store(path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)  # sparse: takes no room
    write_header(path, "<I", (1 << 32) - 1, 16)
    with pytest.raises(BundleError, match="is damaged"):
        open_store(path)


@pytest.mark.robustness
def test_no_folder_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"there is no folder {tmp_path / 'nope'}"):
        open_store(tmp_path / "nope" / "x")
    assert not (tmp_path / "nope").exists()


@pytest.mark.robustness
def test_links_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    real = tmp_path / "real"
    open_store(real).add([1, 2, 3])
    before = real.read_bytes()
    link, dangling, pipe = tmp_path / "link", tmp_path / "dangling", tmp_path / "pipe"
    link.symlink_to(real)
    dangling.symlink_to(tmp_path / "nowhere")
    os.mkfifo(pipe)
    for place in (link, dangling):
        with pytest.raises(ConfigError, match="is a symbolic link: name the file itself"):
            open_store(place)
    for place in (tmp_path, pipe):
        with pytest.raises(ConfigError, match="is not a file"):
            open_store(place)
    with pytest.raises(ConfigError, match="there is no folder"):
        open_store(real / "below")
    assert real.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


def test_a_store_keeps_its_limit(path: Path) -> None:
    NgramStore.open(path, HASH, MIN_BYTES)
    store = NgramStore.open(path, HASH)
    for _ in range(100):
        store.add(list(range(50)))
    assert describe(path).max_bytes == MIN_BYTES
    assert path.stat().st_size <= MIN_BYTES
    other = path.with_name("other")
    NgramStore.open(other, HASH)
    assert describe(other).max_bytes == DEFAULT_MAX_BYTES


def test_another_limit_stays(path: Path) -> None:
    open_store(path).add(list(range(3000)))
    NgramStore.open(path, HASH, MIN_BYTES)
    assert path.stat().st_size <= MIN_BYTES
    assert NgramStore.open(path, HASH).query([2990, 2991], 1).following == [[2992]]
    NgramStore.open(path, HASH, 1 << 20)
    assert describe(path).max_bytes == 1 << 20


def test_describes_what_it_holds(path: Path) -> None:
    store = open_store(path)
    store.add([1, 2, 3])
    store.add([4, 5])
    facts = describe(path)
    assert (facts.version, facts.n_texts, facts.n_tokens) == (3, 2, 5)
    assert facts.n_bytes == HEADER_BYTES + 4 * 7 == path.stat().st_size
    assert (facts.max_bytes, facts.tokenizer_sha256) == (1 << 20, HASH)
    with pytest.raises(ConfigError, match="cannot use the n-gram store"):
        describe(path.with_name("missing"))
    assert not path.with_name("missing").exists()


def test_a_full_disk_loses_the_text_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(path)
    store.add([1, 2, 3])
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", lambda descriptor, content, offset: len(content) // 2)
        with pytest.raises(ConfigError, match="No space left"):
            store.add([4, 5, 6])
    store = open_store(path)
    assert store.n_tokens == 4
    store.add([7, 8, 9])
    assert open_store(path).query([7, 8], 1).following == [[9]]


def add_many(path: Path, first: int) -> None:
    store = NgramStore.open(path, HASH)
    for token in range(first, first + 200):
        store.add([token, token, token])


def test_writers_at_the_same_time_lose_nothing(path: Path) -> None:
    open_store(path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=add_many, args=(path, first)) for first in (0, 1000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    tokens = NgramFile(path, HASH).read().reshape(-1, 4)
    assert (tokens[:, 0] == tokens[:, 2]).all()
    assert sorted(tokens[:, 0].tolist()) == [*range(200), *range(1000, 1200)]


@pytest.mark.parametrize("max_bytes", [-1, 0, MIN_BYTES - 1, 1 << 40])
def test_limits_that_make_no_sense_are_refused(path: Path, max_bytes: int) -> None:
    with pytest.raises(ConfigError, match="makes no sense"):
        open_store(path, max_bytes)
    assert not path.exists()


def rewrite_and_die(path: Path, when: str) -> None:
    """Fills the store until it is rewritten, and is killed in the middle of that."""
    store = open_store(path, MIN_BYTES)

    def die(*arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if when == "before the rename":
        os.fsync = die
    else:
        real_write = os.pwrite

        def half(descriptor: int, content: bytes, offset: int) -> int:
            real_write(descriptor, content[: len(content) // 2 + 1], offset)
            die()
            return 0

        os.pwrite = half
    for _ in range(100):
        store.add(list(range(100, 150)))


@pytest.mark.robustness
@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
@pytest.mark.parametrize("when", ["before the rename", "while appending"])
def test_a_killed_writer_leaves_the_store_readable(path: Path, when: str) -> None:
    open_store(path, MIN_BYTES).add([1, 2, 3])
    child = multiprocessing.get_context("spawn").Process(target=rewrite_and_die, args=(path, when))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    store = open_store(path, MIN_BYTES)
    assert store.query([1, 2], 1).following == [[3]]
    store.add([5, 6, 7])
    assert open_store(path, MIN_BYTES).query([5, 6], 1).following == [[7]]
