"""GGUF files that were split into parts: `NAME-00001-of-00003.gguf` and its siblings."""

from __future__ import annotations

import re
from pathlib import Path

from edgedec.export.checkpoints.gguf_header import GgufHeader, TensorRecord, read_header
from edgedec.export.checkpoints.mapped_file import MappedFile
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields

MAX_PARTS = 9999
_PART = re.compile(r"(?P<name>.+)-(?P<i>\d{5})-of-(?P<n>\d{5})", re.DOTALL)


def model_name(path: Path) -> str:
    """Returns the name of the model in ``path``, without the number of its part."""
    part = _PART.fullmatch(path.stem)
    return part["name"] if part else path.stem


def read_headers(path: Path) -> GgufHeader:
    """Returns the header of a GGUF file; of all its parts where ``path`` is any one of them.

    Raises:
        CheckpointError: a file is broken, or a part is missing or belongs to another model.
        UnsupportedModelError: as of `read_header`.
    """
    header = read_header(MappedFile(path))
    n_parts = Fields(header.metadata, path.name, CheckpointError).integer("split.count", 1)
    if n_parts <= 1:
        return header
    headers = [_read_part(part, i, n_parts) for i, part in enumerate(_find_parts(path, n_parts))]
    tensors: dict[str, TensorRecord] = {}
    for part in headers:
        if twice := next(iter(tensors.keys() & part.tensors.keys()), None):
            raise CheckpointError(f"{path.name}: tensor {twice} is in two of its parts")
        tensors |= part.tensors
    first = Fields(headers[0].metadata, path.name, CheckpointError)
    n_tensors = first.integer("split.tensors.count", len(tensors))
    if n_tensors != len(tensors):
        raise CheckpointError(
            f"{path.name}: its {n_parts} parts hold {len(tensors)} tensors, expected {n_tensors}; "
            f"fetch them again"
        )
    return GgufHeader(headers[0].metadata, tensors)


def _find_parts(path: Path, n_parts: int) -> list[Path]:
    """Returns the files of all parts, in order."""
    named = _PART.fullmatch(path.stem)
    if named is None or int(named["n"]) != n_parts or n_parts > MAX_PARTS:
        raise CheckpointError(
            f"{path.name}: is one of {n_parts} parts, expected a name such as "
            f"{model_name(path)}-00001-of-{n_parts:05}.gguf; give the files the names they "
            "had; files that cat joined are not read: get the parts again"
        )
    parts = [
        path.with_name(f"{named['name']}-{i:05}-of-{n_parts:05}{path.suffix}")
        for i in range(1, n_parts + 1)
    ]
    if missing := [part.name for part in parts if not part.is_file()]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(
            f"{path.name}: is one of {n_parts} parts, and {missing[0]}{more} is missing; put all "
            f"of them into one folder"
        )
    return parts


def _read_part(path: Path, i_part: int, n_parts: int) -> GgufHeader:
    header = read_header(MappedFile(path))
    fields = Fields(header.metadata, path.name, CheckpointError)
    place = fields.integer("split.no", 0), fields.integer("split.count", 1)
    if place != (i_part, n_parts):
        raise CheckpointError(
            f"{path.name}: states that it is part {place[0] + 1} of {place[1]}, expected "
            f"{i_part + 1} of {n_parts}; give the files the names they had"
        )
    return header
