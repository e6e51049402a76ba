"""GGUF files as checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.draft_layer import find_draft_layer, why_left_out
from edgedec.export.checkpoints.gguf_codes import TensorType
from edgedec.export.checkpoints.gguf_header import GgufHeader
from edgedec.export.checkpoints.gguf_parts import model_name, read_headers
from edgedec.export.checkpoints.gguf_tokenizer import build_tokenizer, read_special
from edgedec.export.checkpoints.published import (
    SpecialTokens,
    one_template,
    read_suppressed,
    usable,
)
from edgedec.export.checkpoints.sentence_files import PublishedEmbedding
from edgedec.export.checkpoints.unwritten import StoredBytes, find_unwritten
from edgedec.models.config import MAX_LAYERS
from edgedec.models.errors import CheckpointError, ConfigError, EdgedecError, UnsupportedModelError
from edgedec.models.families import (
    DENSE_TENSORS,
    ROPE_FACTOR_NAMES,
    GgufFacts,
    NotedKeys,
    check_all_read,
    find_family,
    unread_weights,
)
from edgedec.models.fields import Fields, shown
from edgedec.models.pooling import DenseLayer, DenseShape, EmbeddingConfig, Pooling
from edgedec.models.quant import PlainTensor, QuantFormat
from edgedec.models.weights import check_layers, check_weights

_POOLINGS: Mapping[int, Pooling] = {1: "mean", 2: "cls", 3: "last"}
"""Values of ``pooling_type``; 4 is that of models which rate texts."""

MAX_ROPE_FACTORS = 1 << 16

_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Our names -> those of ``general.sampling.*``.

Source: ggml-org/llama.cpp ``gguf-py/gguf/constants.py`` (MIT).
"""


class GgufCheckpoint:
    """A GGUF file, mapped. Nothing but its header is read until rows are asked for."""

    def __init__(self, path: Path) -> None:
        """Opens and checks the file.

        Raises:
            CheckpointError: the file is broken or incomplete.
            UnsupportedModelError: its family, a tensor type or the like has no reader.
        """
        self.name = model_name(path)
        header = read_headers(path)
        self._metadata, self._tensors = header.metadata, header.tensors
        self._fields = Fields(self._metadata, path.name, CheckpointError)
        _refuse_adapters(self._fields)
        architecture = self._fields.text("general.architecture")
        family, noted = find_family(architecture), NotedKeys(self._metadata)
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        try:
            fields = Fields(noted, path.name, CheckpointError)
            facts = GgufFacts(fields, shapes, self._rope_factors(header))
            suppressed = read_suppressed(self._fields, "tokenizer.ggml.suppress_tokens")
            self.config = family.read_gguf(facts).without(suppressed)
            check_all_read(noted, path.name, architecture)
            check_layers(self.config, len(shapes))
            weights = family.weights(self.config).items()
            self._map = {ours: (weight.shape, weight.gguf) for ours, weight in weights}
            for shape, source in self._map.values():
                if _without_ones(shapes.get(source.name, ())) == _without_ones(shape):
                    shapes[source.name] = shape  # files differ in axes of one entry
            drafting = _draft_layers(shapes, fields, self.config.n_layers)
            unread = {*ROPE_FACTOR_NAMES, *drafting}
            unread |= unread_weights(self.config)
            self._check_folded()
            check_weights(self.config.family, self._map, shapes, frozenset(unread))
            self._add_draft_layer({name: shapes[name] for name in drafting})
        except (ConfigError, CheckpointError) as error:
            raise CheckpointError(_prefixed(path, error)) from None
        except UnsupportedModelError as error:
            raise UnsupportedModelError(_prefixed(path, error)) from None

    def _add_draft_layer(self, stored: Mapping[str, tuple[int, ...]]) -> None:
        self.has_draft_layer, self.left_out = False, ""
        try:
            layer = find_draft_layer(self.config, stored, is_gguf=True)
        except EdgedecError as error:
            self.left_out = why_left_out(error)
            return
        self.has_draft_layer = bool(layer)
        self._map |= layer

    @property
    def licence(self) -> str | None:
        """The licence the metadata states."""
        return self._fields.text("general.license", "") or None

    @property
    def special(self) -> SpecialTokens:
        """The tokens that begin and end texts."""
        return read_special(self._fields, self.config.vocab_size)

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling that ``general.sampling.*`` recommends; most files state none."""
        settings = {
            key: self._fields.optional(f"general.sampling.{theirs}", self._fields.number)
            for key, theirs in _SAMPLING.items()
        }
        kept: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
        if "top_k" in kept:
            kept["top_k"] = self._fields.integer("general.sampling.top_k")
        return {"do_sample": kept.get("temperature", 0) > 0, **usable(kept)} if kept else {}

    @property
    def unapplied(self) -> tuple[str, ...]:
        """What ``general.sampling.*`` recommends that is not applied, a line each."""
        prefix, applied = "general.sampling.", set(_SAMPLING.values())
        return tuple(
            f"{self._fields.origin}: {key} is {shown(value)}, which is not applied"
            for key, value in self._metadata.items()
            if key.startswith(prefix) and key.removeprefix(prefix) not in applied and value
        )

    @property
    def embedding(self) -> PublishedEmbedding | None:
        """What ``pooling_type`` states; None where it is missing or none."""
        architecture = self._fields.text("general.architecture")
        pooling = self._fields.integer(f"{architecture}.pooling_type", 0)
        if pooling not in _POOLINGS:
            return None
        dense = tuple(self._dense(name) for name in DENSE_TENSORS if name in self._tensors)
        shapes = tuple(layer.shape for layer in dense)
        return PublishedEmbedding(EmbeddingConfig(_POOLINGS[pooling], dense=shapes), dense)

    def _dense(self, name: str) -> DenseLayer:
        tensor = self._tensors[name]
        weight = np.array(tensor.type.plain(tensor.rows()).dequantize(), np.float32)
        if weight.ndim != 2 or not np.isfinite(weight).all():
            raise CheckpointError(
                f"{self.name}: tensor {name} of shape {list(weight.shape)} is no finite matrix"
            )
        n_out, n_in = weight.shape
        shape = DenseShape(n_in, n_out, False, "identity")
        return DenseLayer(shape, weight, np.zeros(n_out, np.float32))

    def tokenizer_json(self) -> str:
        """Returns the tokenizer in the format of the ``tokenizers`` library."""
        return build_tokenizer(self._fields, self.config.vocab_size)

    def chat_template(self) -> str | None:
        """Returns the Jinja template of conversations."""
        key = "tokenizer.chat_template"
        default, with_tools = (self._fields.text(k, "") or None for k in (key, f"{key}.tool_use"))
        return one_template(default, with_tools)

    def format(self, name: str) -> QuantFormat:
        """Returns the storage format of the matrix ``name``."""
        return self._type(name).format

    def stand_in(self, name: str) -> QuantFormat | None:
        """Returns the format that stands in for one that only floats hold exactly."""
        return self._type(name).stand_in

    def rows(self, name: str, start: int, stop: int) -> PlainTensor:
        """Returns rows [start, stop) of the matrix ``name``, rotary halves apart."""
        (n_rows, *_), source = self._map[name]
        tensor = self._tensors[source.name]
        try:
            return tensor.type.plain(source.take(tensor.rows(), n_rows, start, stop))
        except CheckpointError as error:
            raise CheckpointError(f"{self.name}: tensor {tensor.name}: {error}") from None

    def vector(self, name: str) -> npt.NDArray[np.float32]:
        """Returns the norm weight or bias ``name``."""
        shape, source = self._map[name]
        tensor = self._tensors[source.name]
        values = tensor.type.plain(tensor.rows()).dequantize()
        is_whole = _without_ones(tensor.shape) == _without_ones(shape)
        values = values.reshape(shape if is_whole else tensor.shape)
        return source.values(np.array(source.take(values, shape[0]), np.float32)).reshape(shape)

    def unwritten(self) -> tuple[str, ...]:
        """Returns a line for each tensor that a download seems to have left in part."""
        return find_unwritten(
            StoredBytes(t.file, t.name, t.offset, t.n_bytes, t.rows().shape[-1])
            for t in self._tensors.values()
        )

    def release(self) -> None:
        """Drops mapped pages of what was read."""
        for file in {id(t.file): t.file for t in self._tensors.values()}.values():
            file.release()

    def _check_folded(self) -> None:
        """Checks that rows which lie side by side share no block of weights."""
        for (*_, width), source in self._map.values():
            tensor = self._tensors.get(source.name)
            if source.n_folded > 1 and tensor is not None and width % tensor.type.n_weights:
                raise UnsupportedModelError(
                    f"tensor {tensor.name} is {tensor.type.name}, whose blocks of "
                    f"{tensor.type.n_weights} do not fit rows of {width}"
                )

    def _type(self, name: str) -> TensorType:
        return self._tensors[self._map[name][1].name].type

    def _rope_factors(self, header: GgufHeader) -> dict[str, tuple[float, ...]]:
        factors = {}
        for name in ROPE_FACTOR_NAMES:
            if (tensor := header.tensors.get(name)) is None:
                continue
            if len(tensor.shape) != 1 or tensor.shape[0] > MAX_ROPE_FACTORS:
                raise CheckpointError(f"{name} has shape {list(tensor.shape)}, expected one row")
            values = tensor.type.plain(tensor.rows()).dequantize()[0]
            factors[name] = tuple(values.tolist())
        return factors


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    return [n for n in shape if n != 1]


def _refuse_adapters(fields: Fields) -> None:
    if fields.text("general.type", "model") != "model":
        raise UnsupportedModelError(
            f"{fields.origin}: general.type is {fields.text('general.type')[:40]!r}, "
            "expected 'model': export the model that it adapts, with --lora and the folder of the "
            "adapter as PEFT saved it"
        )


def _draft_layers(names: Collection[str], fields: Fields, n_layers: int) -> list[str]:
    """Returns the tensors of layers behind the model's own, which predict tokens further on."""
    key = f"{fields.text('general.architecture')}.nextn_predict_layers"
    stop = n_layers + fields.integer(key, 0, least=0, most=MAX_LAYERS)
    stems = {f"blk.{layer}" for layer in range(n_layers, stop)}
    return [name for name in names if ".".join(name.split(".")[:2]) in stems]


def _prefixed(path: Path, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(path.name) else f"{path.name}: {text}"
