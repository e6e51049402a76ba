"""Names of stored weights as the recipes expect them, and what their presence says."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.safetensors_file import StoredTensor
from edgedec.export.checkpoints.stored_matrices import QuantisedMatrix
from edgedec.models.errors import CheckpointError
from edgedec.models.families import HAS_O_BIAS
from edgedec.models.fields import Fields
from edgedec.models.quant import PlainTensor

Stored = StoredTensor | QuantisedMatrix

_STEMS = ("embed_tokens.weight", "embeddings.weight")
_BARE_STEMS = ("embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight")
HEAD = "lm_head.weight"
SHARED = "shared.weight"
"""The embedding of encoder and decoder."""
_TIE = "tie_word_embeddings"
_ROWS = 4096
_N_AXES = 3  # of tensors that stack experts


def with_usual_names(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Returns ``tensors`` with ``model.`` before all but the head.

    Some files leave it out, others have more before it, such as ``language_model.``.
    """
    stem = next((stem for stem in _STEMS if _ending_in(stem, tensors)), _STEMS[0])
    names = _ending_in(stem, tensors)
    if f"model.{stem}" in tensors or SHARED in tensors or len(names) != 1:
        return dict(tensors)
    prefix = names[0].removesuffix(stem)
    heads = [name for name in tensors if name.endswith(HEAD)]
    return {
        HEAD
        if heads == [name]
        else f"model.{name.removeprefix(prefix)}"
        if name.startswith(prefix)
        else name: tensor
        for name, tensor in tensors.items()
    }


def with_bare_names(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Returns the tensors of an encoder without what precedes ``embeddings``, such as ``bert.``.

    ``gamma`` and ``beta`` are what old files call weights and biases of norms.
    """
    names = [name for stem in _BARE_STEMS for name in _ending_in(stem, tensors)]
    if len(names) != 1:
        return dict(tensors)
    prefix = names[0].removesuffix(next(s for s in _BARE_STEMS if names[0].endswith(s)))
    return {_modern(name.removeprefix(prefix)): tensor for name, tensor in tensors.items()}


def _modern(name: str) -> str:
    stem, _, part = name.rpartition(".")
    old = {"gamma": "weight", "beta": "bias"} if stem.endswith("LayerNorm") else {}
    return f"{stem}.{old.get(part, part)}" if stem else name


def _ending_in(stem: str, names: Collection[str]) -> list[str]:
    return [name for name in names if name == stem or name.endswith(f".{stem}")]


def with_shared_embedding(tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    """Returns ``tensors`` with the embedding, if it was saved as the head alone that shares it.

    The library of safetensors keeps only one of two names.
    """
    if HEAD not in tensors or any(_ending_in(stem, tensors) for stem in _STEMS):
        return dict(tensors)
    return {
        f"model.{_STEMS[0]}" if name == HEAD else name: tensor for name, tensor in tensors.items()
    }


def with_single_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns ``tensors`` with a tensor for each expert's gate, up and down projection.

    Shapes: stacked gates and up projections [E, 2 * N, K], down projections [E, K, N].
    """
    renamed = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".experts.")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(last)
        if parts is None or len(tensor.shape) != _N_AXES or tensor.shape[1] % len(parts):
            renamed[name] = tensor
            continue
        n_experts, n_rows, k = tensor.shape
        shape = (n_rows // len(parts), k)
        n_bytes = math.prod(shape) * tensor.dtype.itemsize
        for i, (expert, part) in enumerate(itertools.product(range(n_experts), parts)):
            renamed[f"{stem}.experts.{expert}.{part}.weight"] = dataclasses.replace(
                tensor, shape=shape, offset=tensor.offset + i * n_bytes
            )
    return renamed


def with_found(
    fields: Fields,
    tensors: Mapping[str, Stored],
    unused: Collection[str],
    may_lack_head: bool = False,
) -> Fields:
    """Returns ``fields`` with what the stored weights say.

    A head that differs from the embedding is none that is tied to it, whatever config.json states,
    and one that is missing is tied where nothing is stated.

    may_lack_head: a missing head is tied in any case, since nobody reads it: of embedding models.
    """
    is_tied = fields.optional(_TIE, fields.flag)
    if HEAD in tensors and is_tied:
        names = (SHARED, *(f"model.{stem}" for stem in _STEMS))
        embedding = next((tensors[name] for name in names if name in tensors), None)
        is_tied = _are_equal(tensors[HEAD], embedding)
    elif is_tied is None or may_lack_head:
        is_tied = HEAD not in tensors
    has_o_bias = any(n.endswith("self_attn.o_proj.bias") for n in tensors if n not in unused)
    values = {**fields.values, _TIE: is_tied, HAS_O_BIAS: has_o_bias}
    return Fields(values, fields.origin, CheckpointError)


def _are_equal(head: Stored, embedding: Stored | None) -> bool:
    if not (isinstance(head, StoredTensor) and isinstance(embedding, StoredTensor)):
        return embedding is head
    if head.shape != embedding.shape:
        return False
    return all(
        np.array_equal(_floats(head, row), _floats(embedding, row))
        for row in range(0, head.shape[0], _ROWS)
    )


def _floats(tensor: StoredTensor, row: int) -> npt.NDArray[np.float32]:
    return PlainTensor(tensor.format, tensor.values()[row : row + _ROWS]).dequantize()
