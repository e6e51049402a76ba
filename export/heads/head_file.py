"""A draft head in a file by itself, for everyone who has its model.

Safetensors: the matrices that training made as codes and scales, norms as floats, the tokens that
the head can name; metadata say the rest. Rows of the embedding and of the LM head are the model's
own, and not in it. Of 4-bit codes byte j of a row holds code 2j (low nibble) and 2j + 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import HeadWeight
from edgedec.export.quantising.quantise import SCHEMES, quantize_rows
from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import (
    EAGLE,
    FILE_SCHEMES,
    LIGHT_HEADS,
    OF_MODEL,
    feature_width,
    head_config,
    head_shapes,
    read_shares,
)
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.fields import Fields
from edgedec.models.head_ids import check_head_ids
from edgedec.models.quant import FORMATS, PlainTensor
from edgedec.system.files import replacing

Float32 = npt.NDArray[np.float32]

_FACTS, _IDS, _CODES, _SCALES = "edgedec-head", "head_ids", ".codes", ".scales"
_MAX_BYTES = 1 << 30
_N_ROWS = 16
"""Rows of each matrix that are compared to recognise a model."""


@dataclass(frozen=True)
class HeadFacts:
    """What a file says of its head.

    model: `model_digest` of the model that it is for. n_heads: light ones; 1 of other kinds. The
    other fields are those of `HeadEntry`, and the key of `SCHEMES` that it is quantised by.
    """

    kind: str
    model: str
    hidden_layers: tuple[int, ...]
    n_heads: int
    scheme: str
    corpus: str
    n_tokens: int
    held_out: tuple[float, ...]


@dataclass(frozen=True)
class HeadFile:
    """A head that was read: facts, own weights by name, tokens that it can name [N]."""

    path: Path
    facts: HeadFacts
    head_ids: npt.NDArray[np.int32]
    tensors: Mapping[str, npt.NDArray[Any]]

    def config(self, target: ModelConfig) -> ModelConfig:
        """Returns the configuration of the head, for a model of the configuration ``target``."""
        return head_config(target, len(self.head_ids), self.facts.kind, self.facts.n_heads)

    def weights(self, target: ModelConfig) -> dict[str, HeadWeight]:
        """Returns the head's own weights, matrices quantised.

        Raises:
            CheckpointError: The file lacks one, or has it in another shape.
        """
        facts = self.facts
        width = feature_width(target, len(facts.hidden_layers), facts.kind, facts.n_heads)
        shapes = head_shapes(self.config(target), width, facts.kind)
        return {
            name: self._matrix(name, shape) if len(shape) == 2 else self._values(name, shape, "f4")
            for name, shape in shapes.items()
            if name not in OF_MODEL
        }

    def check_fits(self, digest: str, target: ModelConfig) -> None:
        """Raises a CheckpointError where the head is of another model than that of ``digest``."""
        if self.facts.model != digest:
            raise CheckpointError(
                f"{self.path.name} is a draft head of the model {self.facts.model[:12]}, this one "
                f"is {digest[:12]}: take the checkpoint that it was trained for, quantised alike, "
                "or train one with `edgedec train head`"
            )
        check_head_ids(self.head_ids, target.vocab_size)

    def _matrix(self, name: str, shape: tuple[int, ...]) -> PlainTensor:
        fmt = FORMATS[SCHEMES[self.facts.scheme] or ""]
        n, k = shape
        n_bytes = k * fmt.bits // 8
        codes = self._values(name + _CODES, (n, n_bytes), "u1")
        if fmt.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(n, k)
        scales = self._values(name + _SCALES, (n, -(-k // fmt.group)), "f2")
        if not np.isfinite(scales).all():
            raise CheckpointError(f"{self.path.name}: scales of {name} are not numbers")
        return PlainTensor(fmt, codes, scales)

    def _values(self, name: str, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.dtype != np.dtype(dtype):
            got = "nothing" if tensor is None else f"{tensor.dtype}{list(tensor.shape)}"
            raise CheckpointError(
                f"{self.path.name}: {name} is {got}, expected {np.dtype(dtype)}{list(shape)}"
            )
        return tensor


def model_digest(weights: BundleWeights, config: ModelConfig) -> str:
    """Returns what identifies a model, however its bundle is laid out: its configuration, its
    vectors, and the first rows of its matrices as they were quantised."""
    digest = hashlib.sha256(json.dumps(config.canonical(), sort_keys=True).encode())
    for name, shape in sorted(weights.shapes.items()):
        rows = np.arange(min(_N_ROWS, shape[0]))
        values = weights.matrix(name, rows) if len(shape) == 2 else weights.vector(name)
        digest.update(values.tobytes())
    return digest.hexdigest()[:32]


def write_head_file(
    path: Path,
    facts: HeadFacts,
    weights: Mapping[str, Float32],
    head_ids: npt.NDArray[np.integer],
) -> int:
    """Writes a head to ``path``, which appears whole or not at all; returns its bytes.

    weights: as training made them; those of `OF_MODEL` are left out.

    Raises:
        ConfigError: The file cannot be written.
    """
    fmt = FORMATS[SCHEMES[facts.scheme] or ""]
    tensors: dict[str, npt.NDArray[Any]] = {_IDS: head_ids.astype(np.int32)}
    for name, values in weights.items():
        if name in OF_MODEL:
            continue
        if values.ndim == 1:
            tensors[name] = values.astype(np.float32)
            continue
        plain = quantize_rows(values, fmt)
        codes = np.asarray(plain.codes, np.uint8)
        tensors[name + _CODES] = codes[:, ::2] | codes[:, 1::2] << 4 if fmt.bits == 4 else codes
        tensors[name + _SCALES] = plain.scale
    whole = save(tensors, {_FACTS: json.dumps(dataclasses.asdict(facts))})
    try:
        with replacing(path) as file:
            file.write(whole)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    return len(whole)


def read_head_file(path: Path) -> HeadFile:
    """Returns the head that ``path`` holds.

    Raises:
        CheckpointError: There is none, or the file contradicts itself.
    """
    try:
        if (n_bytes := path.stat().st_size) > _MAX_BYTES:
            raise CheckpointError(f"{path.name} has {n_bytes} bytes, more than a head has")
        with safe_open(path, "np") as file:
            facts = _facts(path, file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except (SafetensorError, AttributeError) as error:  # a type that NumPy does not have
        raise CheckpointError(
            f"{path.name} is not a draft head, or damaged ({error}): fetch it again, or "
            "write one with `edgedec train head --head-file`"
        ) from None
    ids = tensors.get(_IDS)
    if ids is None or ids.dtype != np.int32 or ids.ndim != 1:
        raise CheckpointError(f"{path.name} does not say which tokens its head can name")
    return HeadFile(path, facts, ids, tensors)


def _facts(path: Path, metadata: Mapping[str, str]) -> HeadFacts:
    try:
        facts = json.loads(metadata.get(_FACTS, ""))
    except (ValueError, RecursionError):
        raise CheckpointError(
            f"{path.name} is not a draft head: `edgedec train head --head-file` writes one"
        ) from None
    fields = Fields(facts, path.name, CheckpointError, "fetch it again")
    fields.exactly({field.name for field in dataclasses.fields(HeadFacts)})
    if (kind := fields.text("kind")) not in (kinds := (EAGLE, *LIGHT_HEADS)):
        fields.fail("kind", kind, f"one of {', '.join(kinds)}")
    if (scheme := fields.text("scheme")) not in FILE_SCHEMES:
        fields.fail("scheme", scheme, f"one of {', '.join(FILE_SCHEMES)}")
    layers = fields.integers("hidden_layers", 0, 10_000)
    if not layers or list(layers) != sorted(set(layers)):
        fields.fail("hidden_layers", list(layers), "rising numbers of layers")
    if kind in LIGHT_HEADS and len(layers) != 1:
        fields.fail("hidden_layers", list(layers), f"one layer, which {kind} reads")
    return HeadFacts(
        kind=kind,
        model=fields.text("model"),
        hidden_layers=layers,
        n_heads=fields.integer("n_heads", least=1, most=64),
        scheme=scheme,
        corpus=fields.text("corpus"),
        n_tokens=fields.integer("n_tokens", least=1, most=2**62),
        held_out=read_shares(fields, is_trained=True),
    )
