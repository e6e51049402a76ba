"""The token ids that the rows of a trimmed LM head stand for, as a file of a bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import BundleError, ConfigError

Ids = npt.NDArray[np.int32]

_STORED = np.dtype("<i4")


def check_head_ids(ids: npt.NDArray[np.integer], vocab_size: int) -> None:
    """Raises a ConfigError unless ``ids`` [N] rise strictly from 0 on and stay in the vocabulary.

    Rising ids keep the order of equals: the lowest id of equal logits is the lowest row, too.
    """
    if ids.ndim != 1 or not 0 < len(ids) <= vocab_size:
        raise ConfigError(f"head ids have shape {list(ids.shape)}, expected 1 to {vocab_size} ids")
    wrong = np.flatnonzero(np.diff(ids) <= 0)
    if len(wrong):
        first, second = ids[wrong[0]], ids[wrong[0] + 1]
        raise ConfigError(f"head id {second} follows {first}, expected rising ids without repeats")
    if ids[0] < 0 or ids[-1] >= vocab_size:
        worst = ids[0] if ids[0] < 0 else ids[-1]
        raise ConfigError(f"head id {worst} is no token, expected 0 to {vocab_size - 1}")


def write_head_ids(path: Path, ids: Ids) -> None:
    """Writes ``ids`` as little-endian int32."""
    path.write_bytes(ids.astype(_STORED).tobytes())


def read_head_ids(path: Path, vocab_size: int) -> Ids:
    """Returns the checked ids. Shapes: [N] int32.

    Raises:
        BundleError: The file cannot be read or its ids are none of the vocabulary, or unordered.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}; copy the bundle again") from None
    if len(content) % _STORED.itemsize:
        raise BundleError(f"{path} is {len(content)} bytes, expected a multiple of 4")
    ids = np.frombuffer(content, _STORED).astype(np.int32)
    try:
        check_head_ids(ids, vocab_size)
    except ConfigError as error:
        raise BundleError(f"{path}: {error}; export the model again") from None
    return ids
