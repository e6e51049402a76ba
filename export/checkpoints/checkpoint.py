"""Checkpoint: a model as it was published, and `open_checkpoint`, which finds its reader."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.published import SpecialTokens
from edgedec.export.checkpoints.sentence_files import PublishedEmbedding
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.quant import PlainTensor, QuantFormat
from edgedec.models.weights import WeightSource

_PIECE = re.compile(r"(?P<whole>.+\.gguf)[.-](?:part-?\d+(?:of\d+)?|split-?[a-z]{1,2}|\d{3})")
_UNFINISHED = ".aria2"
"""Ends the name of a file that aria2 keeps beside each download, until it is done."""


class Published(Protocol):
    """What a model's publisher states besides its weights."""

    @property
    def name(self) -> str:
        """The model's name, from its file, folder or hub id."""

    @property
    def licence(self) -> str | None:
        """The licence the publisher states."""

    @property
    def special(self) -> SpecialTokens:
        """The tokens that begin and end texts."""

    @property
    def sampling(self) -> dict[str, Any]:
        """What the publisher recommends for sampling, by the names of `SAMPLING_KEYS`."""

    @property
    def unapplied(self) -> tuple[str, ...]:
        """What the publisher states that is not applied, a line each."""

    @property
    def embedding(self) -> PublishedEmbedding | None:
        """What the publisher states of texts as vectors; None of models that write."""

    def tokenizer_json(self) -> str:
        """Returns the tokenizer in the format of the ``tokenizers`` library."""

    def chat_template(self) -> str | None:
        """Returns the Jinja template of conversations."""


class Checkpoint(Published, WeightSource, Protocol):
    """Weights with everything else a bundle needs from a published model."""

    @property
    def has_draft_layer(self) -> bool:
        """Whether there are the weights of `draft_layer`, which lie below `DRAFT_LAYER`."""

    @property
    def left_out(self) -> str:
        """What of the file no bundle gets, and why; empty if there is nothing to say."""

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that ``keep`` converts the matrix ``name`` to.

        None where `format` is that of the file, to the last bit. Otherwise `rows` returns floats.
        """

    def unwritten(self) -> tuple[str, ...]:
        """Returns a line for each tensor that a download seems to have left in part; reads all."""


class EditedCheckpoint:
    """A checkpoint that others edit by overriding; by itself it is the one it wraps."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    @property
    def config(self) -> ModelConfig:
        """The hyper-parameters."""
        return self._checkpoint.config

    @property
    def name(self) -> str:
        """The name of the checkpoint."""
        return self._checkpoint.name

    @property
    def licence(self) -> str | None:
        """The licence of the checkpoint."""
        return self._checkpoint.licence

    @property
    def special(self) -> SpecialTokens:
        """The special tokens of the checkpoint."""
        return self._checkpoint.special

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling that the checkpoint's publisher recommends."""
        return self._checkpoint.sampling

    @property
    def unapplied(self) -> tuple[str, ...]:
        """What the checkpoint's publisher states that is not applied."""
        return self._checkpoint.unapplied

    @property
    def embedding(self) -> PublishedEmbedding | None:
        """What the checkpoint's publisher states of texts as vectors."""
        return self._checkpoint.embedding

    def tokenizer_json(self) -> str:
        """Returns the checkpoint's tokenizer."""
        return self._checkpoint.tokenizer_json()

    def chat_template(self) -> str | None:
        """Returns the checkpoint's chat template."""
        return self._checkpoint.chat_template()

    @property
    def has_draft_layer(self) -> bool:
        """Whether the checkpoint has a layer for drafting."""
        return self._checkpoint.has_draft_layer

    @property
    def left_out(self) -> str:
        """What of the file no bundle gets, and why."""
        return self._checkpoint.left_out

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        return self._checkpoint.format(name)

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for that of the matrix ``name``."""
        return self._checkpoint.stand_in(name)

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``."""
        return self._checkpoint.rows(name, start, stop)

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``."""
        return self._checkpoint.vector(name)

    def unwritten(self) -> tuple[str, ...]:
        """Returns a line for each tensor that a download seems to have left in part."""
        return self._checkpoint.unwritten()

    def release(self) -> None:
        """Drops mapped pages of what was read."""
        self._checkpoint.release()


def _refuse_unfinished(marks: Iterable[Path]) -> None:
    """Refuses downloads that aria2 has not finished: it removes its mark when it has."""
    for mark in sorted(mark for mark in marks if mark.is_file()):
        raise CheckpointError(
            f"{mark}: aria2 has not finished {mark.name.removesuffix(_UNFINISHED)}: go on with "
            f"aria2c --continue, or remove {mark.name} if the file is whole"
        )


def _refuse_piece(path: Path) -> None:
    """Refuses a piece of a file that was cut at some byte, for hubs that limit sizes."""
    if match := _PIECE.fullmatch(path.name):
        raise CheckpointError(
            f"{path}: is a piece of {match['whole']}, cut at some byte: join the pieces in their "
            f"order first, with cat FIRST SECOND ... > {match['whole']}"
        )


def open_checkpoint(source: str) -> Checkpoint:
    """Returns the checkpoint that ``source`` names.

    Args:
        source: a GGUF file, a Hugging Face directory, a catalogue name, or a hub id ``org/name``,
            with ``:FILE`` for one of its GGUF files.

    Raises:
        CheckpointError: there is no such model, or its files are broken.
        UnsupportedModelError: the files are healthy, but there is no recipe for them.
    """
    # Readers import this module for its types, so they are imported here.
    from edgedec.export.checkpoints.catalogue import CATALOGUE, model_file
    from edgedec.export.checkpoints.gguf import GgufCheckpoint
    from edgedec.export.checkpoints.hub import HubName, fetch
    from edgedec.export.checkpoints.safetensors_dir import HuggingFaceCheckpoint

    path = Path(source)
    if source and path.is_dir():
        _refuse_unfinished(path.glob(f"*{_UNFINISHED}"))
        return HuggingFaceCheckpoint(path)
    if path.is_file():
        _refuse_piece(path)
        _refuse_unfinished([path.with_name(path.name + _UNFINISHED)])
        return GgufCheckpoint(path)
    if source.lower() in CATALOGUE:
        return GgufCheckpoint(model_file(source))
    if (name := HubName.parse(source)) is not None:
        fetched = fetch(name).source
        if name.file:
            return GgufCheckpoint(fetched)
        return HuggingFaceCheckpoint(fetched, name=name.hub_id.split("/")[1])
    raise CheckpointError(
        f"no model {source!r}: expected a .gguf file, a Hugging Face directory, a hub id such as "
        f"org/name, or one of: {', '.join(sorted(CATALOGUE))}"
    )
