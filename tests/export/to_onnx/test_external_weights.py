"""The weights file: places, chunks, progress and a full disk."""

from __future__ import annotations

import errno
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export import weights_file
from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.external_weights import write_weights
from edgedec.export.to_onnx.fuse import fuse
from edgedec.export.to_onnx.messages import ModelProto
from edgedec.export.weights_file import PAGE_BYTES
from edgedec.kernels.cpu import pack
from edgedec.kernels.library import has_library
from edgedec.models.families import weight_shapes


def places(model: ModelProto) -> dict[str, tuple[int, int]]:
    """Returns offset and length by tensor name."""
    found = {}
    for tensor in model.graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        found[tensor.name] = int(entries["offset"]), int(entries["length"])
    return found


def test_portable_tensors(make_source: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(weights_file, "CHUNK_BYTES", 4 * 32 * 32)  # 32 rows of hidden_size floats
    source = make_source()
    model = emit_portable(source.config)
    data = write_weights(model, source, tmp_path).read_bytes()
    found = places(model)
    for name, expected in source.weights.items():
        offset, length = found[name]
        stored = np.frombuffer(data, np.float32, length // 4, offset)
        np.testing.assert_array_equal(
            stored,
            expected.T.ravel() if expected.ndim == 2 else expected.ravel(),
        )
        assert offset % PAGE_BYTES == 0


def test_shapes_are_found_out_once(make_source: Any, tmp_path: Path, monkeypatch: Any) -> None:
    source = make_source()
    model = emit_portable(source.config)
    calls = []
    monkeypatch.setattr(
        weights_file, "weight_shapes", lambda config: calls.append(1) or weight_shapes(config)
    )
    write_weights(model, source, tmp_path)
    assert len(calls) == 1


@pytest.mark.skipif(not has_library(), reason="the kernel library is not built")
def test_packed_chunks_join_to_the_packing_of_the_whole(
    make_source: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr(weights_file, "CHUNK_BYTES", 1)
    source = make_source()
    shapes = weight_shapes(source.config)
    formats = {name: source.format(name) for name, shape in shapes.items() if len(shape) == 2}
    model = fuse(emit_portable(source.config), source.config, formats)
    data = write_weights(model, source, tmp_path).read_bytes()
    found = places(model)
    for name, fmt in formats.items():
        offset, length = found[name]
        whole = pack(fmt.index, source.weights[name])
        assert data[offset : offset + length] == whole.tobytes()
        assert offset % PAGE_BYTES == 0


def test_progress_adds_up_and_pages_are_released(make_source: Any, tmp_path: Path) -> None:
    source = make_source()
    model = emit_portable(source.config)
    calls: list[tuple[int, int, str]] = []
    write_weights(model, source, tmp_path, lambda *call: calls.append(call))
    done = [call[0] for call in calls]
    assert done == sorted(done)
    assert calls[-1][0] == calls[-1][1] == sum(length for _, length in places(model).values())
    assert {call[2] for call in calls} == set(places(model))
    assert source.n_releases == len(model.graph.initializer)


def test_full_disk_is_an_oserror(make_source: Any, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    (tmp_path / "weights.bin").symlink_to("/dev/full")
    source = make_source()
    with pytest.raises(OSError, match="No space left") as caught:
        write_weights(emit_portable(source.config), source, tmp_path)
    assert caught.value.errno == errno.ENOSPC


@pytest.mark.skipif(not has_library(), reason="the kernel library is not built")
def test_whole_blocks_are_written(make_source: Any, tmp_path: Path, monkeypatch: Any) -> None:
    block, writes = 2 * PAGE_BYTES, []

    class Recorded(FileIO):
        def write(self, values: Any) -> int:
            writes.append((self.tell(), len(values)))
            return super().write(values)

    monkeypatch.setattr(weights_file, "BLOCK_BYTES", block)
    monkeypatch.setattr(weights_file, "FileIO", Recorded)
    source = make_source()
    formats = {
        name: source.format(name)
        for name, shape in weight_shapes(source.config).items()
        if len(shape) == 2
    }
    model = fuse(emit_portable(source.config), source.config, formats)
    size = write_weights(model, source, tmp_path).stat().st_size
    whole = size // block * block
    assert writes[:-1] == [(start, block) for start in range(0, whole, block)]
    assert writes[-1] == (whole, size - whole)
