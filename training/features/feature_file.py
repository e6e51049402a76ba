"""What draft heads are trained on, on disk: tokens, hidden states, and what the model would say.

A folder of arrays that grow by whole texts, and a list of these texts. What a writer that was
killed left behind the last listed text is cut off.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import ConfigError
from edgedec.models.graph import N_TOP
from edgedec.system.files import replace_text

HELD_OUT = 8
"""Every so many texts one is not trained on, but measured with."""

SELF = "self"
"""Kind of texts that the model wrote itself."""

_LIST = "texts.json"

T = TypeVar("T")


@dataclass(frozen=True)
class TextFeatures:
    """One text. kind: of file it is from, such as ``.py``.

    Shapes: tokens [T] int32; hidden [T, L * D] float16, hidden states of L layers, each row of each
        divided by its root mean square; top_ids [T, N] int32 and top_probs [T, N] float16, the
        likeliest tokens after each.
    """

    kind: str
    tokens: npt.NDArray[np.int32]
    hidden: npt.NDArray[np.float16]
    top_ids: npt.NDArray[np.int32]
    top_probs: npt.NDArray[np.float16]

    def piece(self, start: int, stop: int) -> TextFeatures:
        """Returns the tokens from ``start`` to before ``stop``."""
        of = slice(start, stop)
        return TextFeatures(
            self.kind, self.tokens[of], self.hidden[of], self.top_ids[of], self.top_probs[of]
        )


def is_held_out(i: int) -> bool:
    """Says whether nothing is trained on the text at place ``i``."""
    return i % HELD_OUT == 1


def held_out_of(texts: Sequence[T]) -> list[T]:
    """Returns those of ``texts`` that nothing is trained on."""
    return [text for i, text in enumerate(texts) if is_held_out(i)]


def parted(texts: Sequence[TextFeatures]) -> tuple[list[TextFeatures], list[TextFeatures]]:
    """Returns the texts to train on, and those held out.

    Raises:
        ConfigError: There are too few texts.
    """
    held_out = held_out_of(texts)
    if not held_out:
        raise ConfigError(
            f"the corpus has {len(texts)} texts that are long enough, expected at least 2: name "
            "more of them"
        )
    return [text for i, text in enumerate(texts) if not is_held_out(i)], held_out


class FeatureFile:
    """Texts with their features, in a folder; those of other reading are not used, and removed."""

    def __init__(self, folder: Path, key: Sequence[object], width: int) -> None:
        """key: all that decides what is read. width: numbers of a token's hidden states, or 0.

        Raises:
            ConfigError: The folder cannot be made.
        """
        self.folder = folder
        self._key = hashlib.sha256(repr((*key, width)).encode()).hexdigest()
        self._width = width
        self._columns: dict[str, tuple[type[np.generic], int]] = {
            "tokens": (np.int32, 1),
            "hidden": (np.float16, width),
            "top_ids": (np.int32, N_TOP),
            "top_probs": (np.float16, N_TOP),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}") from None
        self.lengths, self.kinds = self._listed()
        for name in self._columns:
            with self._path(name).open("ab") as file:
                file.truncate(self.n_tokens * self._row_nbytes(name))

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(self.lengths)

    @property
    def token_nbytes(self) -> int:
        """Bytes that a token takes."""
        return sum(map(self._row_nbytes, self._columns))

    def add(self, text: TextFeatures) -> None:
        """Appends a text.

        Raises:
            OSError: The disk is full; the texts before are kept.
        """
        for name, (dtype, _) in self._columns.items():
            with self._path(name).open("ab") as file:
                file.write(np.ascontiguousarray(getattr(text, name), dtype).tobytes())
        self.lengths.append(len(text.tokens))
        self.kinds.append(text.kind)
        self._save_list()

    def texts(self) -> list[TextFeatures]:
        """Returns all texts, mapped: what is not looked at takes no memory."""
        columns = {name: self._mapped(name) for name in self._columns}
        ends = np.cumsum(self.lengths).tolist()
        return [
            TextFeatures(
                kind, **{name: column[stop - n : stop] for name, column in columns.items()}
            )
            for kind, n, stop in zip(self.kinds, self.lengths, ends, strict=True)
        ]

    def _listed(self) -> tuple[list[int], list[str]]:
        try:
            content: Any = json.loads((self.folder / _LIST).read_text(encoding="utf-8"))
            if content["key"] == self._key:
                return [int(n) for n in content["lengths"]], [
                    str(kind) for kind in content["kinds"]
                ]
        except (OSError, ValueError, LookupError, TypeError):
            pass
        return [], []

    def _save_list(self) -> None:
        listed = {"key": self._key, "lengths": self.lengths, "kinds": self.kinds}
        replace_text(self.folder / _LIST, json.dumps(listed))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.bin"

    def _row_nbytes(self, name: str) -> int:
        dtype, n = self._columns[name]
        return n * np.dtype(dtype).itemsize

    def _mapped(self, name: str) -> npt.NDArray[Any]:
        dtype, n = self._columns[name]
        shape = (self.n_tokens,) if name == "tokens" else (self.n_tokens, n)
        if 0 in shape:  # which cannot be mapped
            return np.zeros(shape, dtype)
        return np.memmap(self._path(name), dtype, "r", shape=shape)
