"""How hidden states of a text become its vector: what an embedding model states beside its layers.

Source: sentence-transformers ``models/Pooling.py`` and ``models/Dense.py`` (Apache-2.0).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.fields import Fields, shown

Float32 = npt.NDArray[np.float32]
Pooling = Literal["mean", "cls", "last"]
DenseActivation = Literal["identity", "tanh", "relu"]

_STORED = np.dtype("<f4")
_MAX_SIZE = 1 << 20


@dataclass(frozen=True)
class DenseShape:
    """A matrix behind the pooling, its bias and activation.

    n_in, n_out: numbers that it reads and writes.
    """

    n_in: int
    n_out: int
    has_bias: bool
    activation: DenseActivation

    @property
    def n_numbers(self) -> int:
        """Numbers of its matrix and its bias."""
        return self.n_out * (self.n_in + self.has_bias)


@dataclass(frozen=True)
class EmbeddingConfig:
    """What an embedding model states beside its layers.

    pooling: the mean of all tokens' hidden states, that of the first, or that of the last token.
    closing_token_ids: tokens that a text ends with. prompts: texts before a text, by their names,
    such as ``query``. default_prompt: the name of the one that is used unless a caller names
    another. dense: matrices behind the pooling.
    """

    pooling: Pooling
    closing_token_ids: tuple[int, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dense: tuple[DenseShape, ...] = ()

    def prompt(self, name: str | None) -> str:
        """Returns the text of the prompt called ``name``, the default one when None.

        Raises:
            ConfigError: There is none of that name.
        """
        name = self.default_prompt if name is None else name
        if name is None:
            return ""
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "this model has none"
            raise ConfigError(f"there is no prompt {shown(name)}, expected one of: {known}")
        return self.prompts[name]

    def size(self, hidden_size: int) -> int:
        """Returns how many numbers a vector has."""
        return self.dense[-1].n_out if self.dense else hidden_size

    def check_dense(self, hidden_size: int) -> None:
        """Raises a ConfigError unless each matrix reads what the one before it writes."""
        size = hidden_size
        for i, dense in enumerate(self.dense):
            if dense.n_in != size:
                raise ConfigError(f"dense matrix {i} reads {dense.n_in} numbers, expected {size}")
            size = dense.n_out


@dataclass(frozen=True, eq=False)
class DenseLayer:
    """A matrix [n_out, n_in] behind the pooling, and its bias [n_out], zeros if it has none."""

    shape: DenseShape
    weight: Float32
    bias: Float32

    def of(self, vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns what it makes of ``vectors`` [n, n_in]."""
        made = vectors @ self.weight.T.astype(np.float64) + self.bias
        if self.shape.activation == "tanh":
            return np.tanh(made)
        if self.shape.activation == "relu":
            return np.maximum(made, 0)
        return made


def write_dense(path: Path, layers: Sequence[DenseLayer]) -> None:
    """Writes matrices and biases one behind the other, as little-endian float32."""
    parts = [part for layer in layers for part in _parts(layer)]
    path.write_bytes(b"".join(part.astype(_STORED).tobytes() for part in parts))


def _parts(layer: DenseLayer) -> list[Float32]:
    return [layer.weight, *([layer.bias] if layer.shape.has_bias else [])]


def read_dense(path: Path, shapes: Sequence[DenseShape]) -> tuple[DenseLayer, ...]:
    """Returns the matrices of these ``shapes``.

    Raises:
        BundleError: The file cannot be read, has another size, or a number in it is not finite.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"cannot read {path}: {error.strerror}; copy the bundle again") from None
    expected = _STORED.itemsize * sum(shape.n_numbers for shape in shapes)
    if len(content) != expected:
        raise BundleError(
            f"{path} is {len(content)} bytes, expected {expected}: export the model again"
        )
    numbers = np.frombuffer(content, _STORED).astype(np.float32)
    if not np.isfinite(numbers).all():
        raise BundleError(f"{path} has a weight that is not finite: export the model again")
    layers, start = [], 0
    for shape in shapes:
        n_weights = shape.n_out * shape.n_in
        layer_numbers = numbers[start : (start := start + shape.n_numbers)]
        bias = layer_numbers[n_weights:] if shape.has_bias else np.zeros(shape.n_out, np.float32)
        layers.append(
            DenseLayer(shape, layer_numbers[:n_weights].reshape(shape.n_out, shape.n_in), bias)
        )
    return tuple(layers)


def read_embedding(fields: Fields, last_id: int) -> EmbeddingConfig:
    """Returns what a manifest states; types and ranges are checked.

    Raises:
        BundleError: A key is unknown, missing, or of the wrong type or range.
    """
    fields.exactly({f.name for f in dataclasses.fields(EmbeddingConfig)})
    prompts = fields.table("prompts")
    default = fields.optional("default_prompt", fields.text)
    embedding = EmbeddingConfig(
        pooling=cast(Pooling, _one_of(fields, "pooling", get_args(Pooling))),
        closing_token_ids=fields.integers("closing_token_ids", 0, last_id),
        prompts={name: prompts.text(name) for name in prompts.values},
        default_prompt=default,
        dense=tuple(
            _read_shape(fields.nested(f"dense[{i}]", values))
            for i, values in enumerate(fields.items("dense"))
        ),
    )
    if default is not None and default not in embedding.prompts:
        fields.fail("default_prompt", default, "a name of one of the prompts")
    return embedding


def _read_shape(fields: Fields) -> DenseShape:
    fields.exactly({f.name for f in dataclasses.fields(DenseShape)})
    return DenseShape(
        fields.integer("n_in", least=1, most=_MAX_SIZE),
        fields.integer("n_out", least=1, most=_MAX_SIZE),
        fields.flag("has_bias"),
        cast(DenseActivation, _one_of(fields, "activation", get_args(DenseActivation))),
    )


def _one_of(fields: Fields, key: str, known: Sequence[Any]) -> str:
    value = fields.text(key)
    if value not in known:
        fields.fail(key, value, f"one of {', '.join(known)}")
    return value
