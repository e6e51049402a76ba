"""Broken and hostile GGUF files: one clear line each, and never another exception."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.checkpoints.gguf_header import read_header
from edgedec.export.checkpoints.mapped_file import MappedFile
from edgedec.models.errors import CheckpointError, EdgedecError, UnsupportedModelError

pytestmark = pytest.mark.robustness

VERSION, TENSOR_COUNT, PAIR_COUNT = 4, 8, 16


def refusal(path: Path) -> str:
    """Returns the one line with which the file is refused."""
    with pytest.raises((CheckpointError, UnsupportedModelError)) as caught:
        open_checkpoint(str(path))
    line = str(caught.value)
    assert len(line.splitlines()) == 1
    assert path.name in line
    assert len(line) < 400
    return line


class Content(bytes):
    """Bytes of a file that do not flood a failure report."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes>"


@pytest.fixture(scope="module")
def healthy(make_gguf: Any) -> Content:
    return Content(make_gguf("llama", "Q4_0").read_bytes())


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Returns a writer of bytes to a fresh file."""

    def to_file(content: bytes) -> Path:
        path = tmp_path / "broken.gguf"
        path.write_bytes(content)
        return path

    return to_file


def replaced(content: bytes, position: int, new: bytes) -> bytes:
    return content[:position] + new + content[position + len(new) :]


def header_size(content: bytes, path: Path) -> int:
    path.write_bytes(content)
    tensors = read_header(MappedFile(path)).tensors.values()
    return min(tensor.offset for tensor in tensors)


def record_position(content: bytes, name: str) -> int:
    """Returns where the record of a tensor continues behind its name."""
    encoded = name.encode()
    return content.index(struct.pack("<Q", len(encoded)) + encoded) + 8 + len(encoded)


def test_truncation_anywhere(healthy: bytes, tmp_path: Path, write: Any) -> None:
    path = tmp_path / "healthy.gguf"
    start = header_size(healthy, path)
    tensors = read_header(MappedFile(path)).tensors.values()
    end = max(tensor.offset + tensor.n_bytes for tensor in tensors)
    rng = np.random.default_rng(0)
    for offset in [*rng.integers(0, start, 100), *rng.integers(start, end, 99), end - 1]:
        refusal(write(healthy[: int(offset)]))


@pytest.mark.parametrize("magic", [b"GGML", b"ggjt", b"\x00" * 4, b"PK\x03\x04"])
def test_wrong_magic(healthy: bytes, write: Any, magic: bytes) -> None:
    assert "not a GGUF file" in refusal(write(replaced(healthy, 0, magic)))


def test_big_endian_is_named(healthy: bytes, write: Any) -> None:
    assert "big-endian" in refusal(write(replaced(healthy, VERSION, struct.pack(">I", 3))))


@pytest.mark.parametrize("version", [0x01, 4, 99])
def test_other_versions(healthy: bytes, write: Any, version: int) -> None:
    line = refusal(write(replaced(healthy, VERSION, struct.pack("<I", version))))
    assert f"version {version}, expected 2 or 3" in line


def test_version_2_is_read(healthy: bytes, write: Any) -> None:
    open_checkpoint(str(write(replaced(healthy, VERSION, struct.pack("<I", 2)))))


@pytest.mark.parametrize("count", [2**20, 2**32, 2**62, 2**64 - 1])
@pytest.mark.parametrize("position", [TENSOR_COUNT, PAIR_COUNT])
def test_absurd_counts(healthy: bytes, write: Any, position: int, count: int) -> None:
    line = refusal(write(replaced(healthy, position, struct.pack("<Q", count))))
    assert f"count is {count}" in line


@pytest.mark.parametrize("length", [2**24 + 1, 2**40, 2**64 - 1])
def test_absurd_string_length(healthy: bytes, write: Any, length: int) -> None:
    key = b"general.architecture"
    position = healthy.index(key)
    assert "metadata key" in refusal(
        write(replaced(healthy, position - 8, struct.pack("<Q", length)))
    )
    value = struct.pack("<Q", length)
    line = refusal(write(replaced(healthy, position + len(key) + 4, value)))
    assert "general.architecture" in line


@pytest.mark.parametrize("length", [2**20, 2**33, 2**63])
@pytest.mark.parametrize("key", [b"tokenizer.ggml.tokens", b"tokenizer.ggml.token_type"])
def test_absurd_array_length(healthy: bytes, write: Any, key: bytes, length: int) -> None:
    position = healthy.index(key) + len(key) + 8
    line = refusal(write(replaced(healthy, position, struct.pack("<Q", length))))
    assert key.decode() in line


@pytest.mark.parametrize("n_dimensions", [0, 5, 2**31])
def test_absurd_dimension_count(healthy: bytes, write: Any, n_dimensions: int) -> None:
    position = record_position(healthy, "output.weight")
    line = refusal(write(replaced(healthy, position, struct.pack("<I", n_dimensions))))
    assert f"output.weight has {n_dimensions} dimensions" in line


@pytest.mark.parametrize("dimensions", [(0, 300), (256, 0), (2**63, 2), (2**32, 2**32), (33, 300)])
def test_absurd_dimensions(healthy: bytes, write: Any, dimensions: tuple[int, int]) -> None:
    position = record_position(healthy, "output.weight") + 4
    line = refusal(write(replaced(healthy, position, struct.pack("<2Q", *dimensions))))
    assert "output.weight" in line


@pytest.mark.parametrize(("kind", "shown"), [(15, "Q8_K"), (28, "F64"), (4, "4"), (2**31, "2")])
def test_unread_tensor_type(healthy: bytes, write: Any, kind: int, shown: str) -> None:
    position = record_position(healthy, "output.weight") + 4 + 16
    line = refusal(write(replaced(healthy, position, struct.pack("<I", kind))))
    assert f"output.weight has type {shown}" in line


@pytest.mark.parametrize("kind", [1, 8, 34, 41, 42])
def test_wrong_tensor_type(healthy: bytes, write: Any, kind: int) -> None:
    """A type of another size leaves a gap: the bytes would be read as numbers without sense."""
    position = record_position(healthy, "blk.0.attn_q.weight") + 4 + 16
    line = refusal(write(replaced(healthy, position, struct.pack("<I", kind))))
    assert "blk.0.attn_k.weight begins at" in line
    assert "where the one before it ends" in line


@pytest.mark.parametrize("offset", [1, 2**40, 2**64 - 32])
def test_tensor_outside_the_file(healthy: bytes, write: Any, offset: int) -> None:
    position = record_position(healthy, "output.weight") + 4 + 16 + 4
    line = refusal(write(replaced(healthy, position, struct.pack("<Q", offset))))
    assert "output.weight" in line


def test_names_that_appear_twice(healthy: bytes, write: Any) -> None:
    twice = healthy.replace(b"blk.1.attn_norm.weight", b"blk.0.attn_norm.weight")
    assert "blk.0.attn_norm.weight appears twice" in refusal(write(twice))
    twice = healthy.replace(b"llama.rope.freq_base", b"llama.context_length")
    assert "llama.context_length appears twice" in refusal(write(twice))


def test_names_that_would_break_a_terminal(healthy: bytes, write: Any) -> None:
    line = refusal(write(healthy.replace(b"output_norm.weight", b"output\norm.\x1b[31m")))
    assert "not a printable name" in line


@pytest.mark.parametrize("alignment", [0, 3, 4, 2**31])
def test_absurd_alignment(make_gguf: Any, alignment: int) -> None:
    # The writer would obey the key, so it gets another of the same length.
    path = make_gguf("llama", metadata={"general.alignmenX": alignment})
    path.write_bytes(path.read_bytes().replace(b"general.alignmenX", b"general.alignment"))
    assert "power of two" in refusal(path)


def test_layer_count_beyond_the_file(make_gguf: Any) -> None:
    path = make_gguf("llama", metadata={"llama.block_count": 2**31 - 1})
    assert "llama.block_count is 2147483647, expected an integer, 1 to 10000" in refusal(path)


@pytest.mark.parametrize("key", ["llama.block_count", "llama.embedding_length"])
@pytest.mark.parametrize("value", ["two", 1.5, [1, 2], ["a", "b\n"], None, 0])
def test_metadata_of_another_type(make_gguf: Any, key: str, value: Any) -> None:
    assert refusal(make_gguf("llama", metadata={key: value}))


def test_empty_and_absent_files(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    path.touch()
    assert "is empty" in refusal(path)
    with pytest.raises(CheckpointError, match=r"no model '.*absent\.gguf': expected"):
        open_checkpoint(str(tmp_path / "absent.gguf"))


@pytest.mark.slow
@settings(
    max_examples=300,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_flipped_bytes_never_escape(healthy: bytes, tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "flipped.gguf"
    start = header_size(healthy, path)
    content = bytearray(healthy)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, start - 1))
        content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(str(path))
        checkpoint.tokenizer_json()
        checkpoint.chat_template()
        assert checkpoint.special.eos_ids is not None
        assert checkpoint.licence != ""
        checkpoint.rows("embed_tokens.weight", 0, 2)
    except EdgedecError as error:
        line = str(error)
    else:
        line = "read"
    assert len(line.splitlines()) == 1


def test_downloads_that_aria2_has_not_finished(make_gguf: Any, tmp_path: Path) -> None:
    """It keeps a file beside each one; what other programs leave says nothing of a whole file."""
    path = tmp_path / "model.gguf"
    path.write_bytes(make_gguf("llama").read_bytes())
    for name in ("model.gguf.part", "model.gguf.incomplete", "other.gguf.aria2"):
        (tmp_path / name).touch()
    assert open_checkpoint(str(path)).config.family == "llama"
    (tmp_path / "model.gguf.aria2").touch()
    with pytest.raises(CheckpointError, match=r"aria2 has not finished model\.gguf: go on with"):
        open_checkpoint(str(path))
    (tmp_path / "model.safetensors.aria2").touch()
    with pytest.raises(CheckpointError, match="aria2 has not finished"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("end", [".part1of2", "-part-2", "-split-a", ".001"])
def test_pieces_of_a_file_are_joined_first(make_gguf: Any, tmp_path: Path, end: str) -> None:
    path = tmp_path / f"model.Q5_K_M.gguf{end}"
    path.write_bytes(make_gguf("llama").read_bytes()[:5000])
    with pytest.raises(
        CheckpointError, match=r"is a piece of model\.Q5_K_M\.gguf, cut at some byte"
    ):
        open_checkpoint(str(path))
