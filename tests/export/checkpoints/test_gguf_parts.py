"""Split GGUF files: whole from any part; what is missing is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.errors import CheckpointError
from edgedec.models.families import matrices
from edgedec.models.weights import float_rows

gguf = pytest.importorskip("gguf", reason="needs the dev extra")

N_PARTS = 3


def part_path(folder: Path, i: int, n: int = N_PARTS) -> Path:
    return folder / f"tiny-{i + 1:05}-of-{n:05}.gguf"


def write_parts(
    folder: Path, tiny: Any, total: int | None = None, weights: list[Any] | None = None
) -> None:
    """Writes the tiny llama in parts, as llama-gguf-split does."""
    weights = weights or list(tiny.tiny_weights().items())
    for i in range(N_PARTS):
        writer = gguf.GGUFWriter(part_path(folder, i), "llama")
        facts = tiny.tiny_metadata("llama") if i == 0 else {}
        for key, value in facts.items():
            tiny.add_value(writer, key, value)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", N_PARTS)
        writer.add_int32("split.tensors.count", total or len(weights))
        for name, value in weights[i::N_PARTS]:
            writer.add_tensor(name, value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


@pytest.fixture
def parts(tmp_path: Path, tiny: Any) -> Path:
    """Returns a folder with the parts of a model."""
    write_parts(tmp_path, tiny)
    return tmp_path


@pytest.mark.parametrize("i", range(N_PARTS))
def test_any_part_opens_the_whole(parts: Path, make_gguf: Any, i: int) -> None:
    whole = open_checkpoint(str(make_gguf("llama")))
    checkpoint = open_checkpoint(str(part_path(parts, i)))
    assert checkpoint.name == "tiny"
    assert checkpoint.config == whole.config
    for name, (n, _) in matrices(whole.config).items():
        np.testing.assert_array_equal(
            float_rows(checkpoint, name, 0, n), float_rows(whole, name, 0, n)
        )
    assert checkpoint.tokenizer_json() == whole.tokenizer_json()
    checkpoint.release()


def test_a_missing_part_is_named(parts: Path) -> None:
    part_path(parts, 1).unlink()
    with pytest.raises(CheckpointError, match=r"3 parts, and tiny-00002-of-00003\.gguf is missing"):
        open_checkpoint(str(part_path(parts, 0)))
    part_path(parts, 2).unlink()
    with pytest.raises(CheckpointError, match=r"00002-of-00003\.gguf and 1 more is missing"):
        open_checkpoint(str(part_path(parts, 0)))


def test_renamed_and_exchanged_parts_are_refused(parts: Path) -> None:
    exchanged = part_path(parts, 1).read_bytes()
    part_path(parts, 2).write_bytes(exchanged)
    with pytest.raises(CheckpointError, match="states that it is part 2 of 3, expected 3 of 3"):
        open_checkpoint(str(part_path(parts, 0)))
    alone = part_path(parts, 0).rename(parts / "alone.gguf")
    with pytest.raises(CheckpointError, match=r"name such as alone-00001-of-00003\.gguf"):
        open_checkpoint(str(alone))


def test_tensors_are_counted(tmp_path: Path, tiny: Any) -> None:
    write_parts(tmp_path, tiny, total=99)
    with pytest.raises(CheckpointError, match=r"parts hold \d+ tensors, expected 99"):
        open_checkpoint(str(part_path(tmp_path, 0)))


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path, tiny: Any) -> None:
    weights = list(tiny.tiny_weights().items())
    write_parts(tmp_path, tiny, weights=[weights[0], *weights])
    with pytest.raises(CheckpointError, match=r"token_embd\.weight is in two of its parts"):
        open_checkpoint(str(part_path(tmp_path, 0)))
