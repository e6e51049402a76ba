"""A read-only memory map of a file."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import CheckpointError
from edgedec.system.memory import release_pages

_N_BEGINNING = 64


def check_is_itself(path: Path, beginning: bytes) -> None:
    """Checks that a file is not what stands for it after a download that went wrong.

    Raises:
        CheckpointError: it is a pointer of Git LFS, or a web page.
    """
    if beginning.startswith(b"version https://git-lfs"):
        raise CheckpointError(
            f"{path.name}: is a pointer of Git LFS, not the file itself; run `git lfs pull` in its "
            "folder"
        )
    if beginning.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise CheckpointError(f"{path.name}: is a web page, not a model's file; fetch it again")


class MappedFile:
    """Bytes of a file, read on demand by the operating system.

    Attributes:
        data: the map itself.
        n_bytes: size of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise CheckpointError(f"{path.name}: the file is empty; fetch it again") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
        self.n_bytes = len(self.data)
        check_is_itself(path, self.data[:_N_BEGINNING])

    def view(self, offset: int, n_bytes: int) -> npt.NDArray[np.uint8]:
        """Returns bytes [offset, offset + n_bytes) without copying them."""
        assert offset >= 0
        assert 0 <= n_bytes <= self.n_bytes - offset
        return np.frombuffer(self.data, np.uint8, n_bytes, offset)

    def release(self) -> None:
        """Lets the operating system take back every page read so far."""
        release_pages(self.data)
