"""A draft head as its publisher lays it out: a folder of a `config.json` and one safetensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.safetensors_file import StoredTensor, read_tensors
from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import HeadWeight
from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields
from edgedec.models.quant import PlainTensor
from edgedec.models.token_pairs import TokenPairs

EMBEDDING = "embed_tokens.weight"
_N_COMPARED, _MIN_COSINE = 256, 0.9
"""Rows of the embedding that are compared, and how alike they are at least: 4 bits give 0.99."""


@dataclass(frozen=True)
class HeadFolder(ABC):
    """A head that was read. tensors: by name."""

    name: str
    fields: Fields
    tensors: Mapping[str, StoredTensor]

    kind: ClassVar[str]
    """One of `HEAD_KINDS`."""

    @abstractmethod
    def layers(self, n_layers: int) -> tuple[int, ...]:
        """Returns how many of the model's ``n_layers`` are before each state that it reads."""

    @abstractmethod
    def config(self, target: ModelConfig) -> ModelConfig:
        """Returns the configuration of the head, for a model of the configuration ``target``.

        Raises:
            CheckpointError: It is the head of another model.
        """

    @abstractmethod
    def weights(self, config: ModelConfig) -> dict[str, HeadWeight]:
        """Returns the head's own weights, rows of an LM head by rising ids.

        Raises:
            CheckpointError: One is missing, has another shape, or nobody reads it.
        """

    @abstractmethod
    def rising_ids(self, target: ModelConfig) -> npt.NDArray[np.int64]:
        """Returns the tokens that it can name."""

    def token_pairs(self, config: ModelConfig) -> TokenPairs | None:
        """Returns what each token adds to the logits of the next; None of most heads.

        Raises:
            CheckpointError: It is missing or has another shape.
        """
        return None

    def check_tokens(self, parent: BundleWeights, target: ModelConfig) -> None:
        """Raises a CheckpointError where its tokens or embeddings are another model's."""
        if EMBEDDING not in self.tensors:
            return
        embedding = self.values(EMBEDDING, (target.vocab_size, target.hidden_size))
        rows = np.unique(np.linspace(0, target.vocab_size - 1, _N_COMPARED).astype(np.int64))
        alike = _cosine(embedding[rows], parent.matrix(EMBEDDING, rows))
        if alike < _MIN_COSINE:
            raise CheckpointError(
                f"{self.name} is a draft head of another model: its embeddings differ from "
                f"this model's (cosine {alike:.2f}, expected {_MIN_COSINE} at least)"
            )

    def check_sizes(self, config: ModelConfig, target: ModelConfig) -> None:
        """Raises a CheckpointError where ``config``, as its file states it, does not fit."""
        for key in ("hidden_size", "vocab_size"):
            if getattr(config, key) != getattr(target, key):
                raise CheckpointError(
                    f"{self.name} is a draft head of another model: its {key} is "
                    f"{getattr(config, key)}, the model's {getattr(target, key)}"
                )

    def values(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Returns a tensor of this ``shape``; a CheckpointError if it has another or is damaged."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.is_raw:
            got = "nothing" if tensor is None else f"{tensor.type}{list(tensor.shape)}"
            raise CheckpointError(f"{self.name}: {name} is {got}, expected {list(shape)}")
        values = PlainTensor(tensor.format, tensor.values()).dequantize()
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.name}: {name} holds numbers that are not finite")
        return np.array(values, np.float32)

    def own_weights(
        self, shapes: Mapping[str, tuple[int, ...]], names: Mapping[str, str], others: set[str]
    ) -> dict[str, HeadWeight]:
        """Returns the weights of ``shapes``, called as ``names`` say in the file, else alike.

        others: tensors that are no weights of it.

        Raises:
            CheckpointError: One is missing, has another shape, or nobody reads it.
        """
        places = {name: names.get(name, name) for name in shapes}
        if unread := sorted(set(self.tensors) - others - set(places.values())):
            raise CheckpointError(f"{self.name}: nothing reads the tensor {unread[0]}")
        return {name: self.values(places[name], shape) for name, shape in shapes.items()}


def read_head_tensors(folder: Path, but: str = "") -> dict[str, StoredTensor]:
    """Returns the tensors of the one file of a head; a CheckpointError if there is not one.

    but: name of another file beside it.
    """
    files = sorted(path for path in folder.glob("*.safetensors") if path.name != but)
    if len(files) != 1:
        raise CheckpointError(
            f"{folder.resolve().name} has {len(files)} safetensors files, expected one: convert a "
            "file of PyTorch with safetensors.torch.save_file"
        )
    return read_tensors(files[0])


def _cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Returns the median cosine of rows."""
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.median((a * b).sum(axis=1) / np.maximum(sizes, 1e-9)))
