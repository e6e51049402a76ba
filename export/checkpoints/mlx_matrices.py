"""Matrices of MLX directories: whole numbers or small floats in groups, experts stacked.

Sources: ml-explore/mlx ``mlx.core.quantize`` and ``dequantize`` (definition, MIT),
ml-explore/mlx-lm ``models/switch_layers.py`` (names of experts, MIT).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from edgedec.export.checkpoints.float_groups import MODES, FloatGroups
from edgedec.export.checkpoints.grouped_matrices import (
    WORD_BITS,
    GroupedMatrix,
    taken_parts,
)
from edgedec.export.checkpoints.safetensors_file import StoredTensor
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields
from edgedec.models.weights import SourceWeight

_AFFINE = "affine"
_BITS = (2, 3, 4, 5, 6, 8)
_USUAL = {_AFFINE: (64, 4), **MODES}
"""Mode -> weights of a group, bits of a code, where they are not stated."""
_N_AXES = 3  # of tensors that stack experts
_STACK = re.compile(
    r"(.+)\.(?:switch_mlp|experts)\.((?:gate|up|down)_proj\.(?:weight|scales|biases))"
)
_FIRST_EXPERT = re.compile(r"layers\.([0-9]+)\.(\w+)\.experts\.0\.((?:gate|up|down)_proj\.weight)$")
_EXPERTS_BIAS = re.compile(r"layers\.([0-9]+)\.(\w+)\.experts\.((?:gate|up|down)_proj\.bias)$")
_OUR_EXPERTS = re.compile(r"layers\.([0-9]+)\.mlp\.experts\.(\w+\.\w+)")
_EXPERT = re.compile(r"\.experts\.[0-9]+\.")


MlxMatrix = GroupedMatrix | FloatGroups


def mlx_matrix(tensors: dict[str, Any], stem: str, config: Fields) -> MlxMatrix:
    """Returns the matrix ``stem`` of a directory of MLX, and takes its parts out of ``tensors``.

    Raises:
        CheckpointError: Parts are missing or do not fit each other.
        UnsupportedModelError: It is packed in a mode that is not known.
    """
    settings = _settings(stem, config)
    mode = settings.get("mode") or _AFFINE
    settings.refuse("mode", *_USUAL)
    usual_size, usual_bits = _USUAL[mode]
    n_bits = settings.optional("bits", settings.integer) or usual_bits
    size = settings.optional("group_size", settings.integer) or usual_size
    known = _BITS if mode == _AFFINE else (usual_bits,)
    if n_bits not in known:
        settings.fail("bits", n_bits, f"one of {', '.join(map(str, known))}")
    if size < 1:
        settings.fail("group_size", size, "1 or more")
    names = ("weight", "scales", "biases") if mode == _AFFINE else ("weight", "scales")
    codes, scales, *minimums = taken_parts(tensors, stem, names)
    n, k = codes.shape[0], codes.shape[-1] * WORD_BITS // n_bits
    has_scales = scales.type == "U8" if mode != _AFFINE else not scales.is_raw
    fits = len(codes.shape) == 2 and not k % size and has_scales
    if not fits or any(part.shape != (n, k // size) for part in (scales, *minimums)):
        shapes = " and ".join(str(list(part.shape)) for part in (scales, *minimums))
        raise CheckpointError(
            f"{stem}: scales or biases of shape {shapes} do not fit a matrix of {[n, k]} in groups "
            f"of {size}; fetch it again"
        )
    if mode != _AFFINE:
        return FloatGroups(codes, (n, k), mode, scales)
    return GroupedMatrix(codes, (n, k), n_bits, scales, *minimums)


def _settings(stem: str, config: Fields) -> Fields:
    """Returns what config.json says of the matrix ``stem``, or of all."""
    settings = config.table("quantization", config.get("quantization_config"))
    for name in (stem, _EXPERT.sub(".switch_mlp.", stem), _EXPERT.sub(".experts.", stem)):
        if isinstance(settings.get(name), dict):
            return settings.table(name)
    return settings


def with_mlx_experts(tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Returns ``tensors`` with one for each expert, in place of those that MLX stacks.

    They are called ``X.experts.N.gate_proj.weight``, and so on.
    """
    tensors_: dict[str, StoredTensor] = {}
    for name, tensor in tensors.items():
        match = _STACK.fullmatch(name)
        if match is None or len(tensor.shape) != _N_AXES:
            tensors_[name] = tensor
            continue
        n_experts, *shape = tensor.shape
        n_bytes = math.prod(shape) * tensor.dtype.itemsize
        for expert in range(n_experts):
            tensors_[f"{match[1]}.experts.{expert}.{match[2]}"] = dataclasses.replace(
                tensor, shape=tuple(shape), offset=tensor.offset + expert * n_bytes
            )
    return tensors_


def mlx_places(
    places: Mapping[str, SourceWeight], stored: Collection[str]
) -> dict[str, SourceWeight]:
    """Returns ``places`` of our weights with those of experts where MLX has them.

    It gives gates, up and down projections tensors of their own, whatever the publisher does.
    """
    all_places, firsts = dict(places), {}
    for name in stored:
        if match := _FIRST_EXPERT.search(name):
            firsts[match[1], match[3]] = name.replace(".experts.0.", ".experts.{expert}.")
        elif match := _EXPERTS_BIAS.search(name):
            firsts[match[1], match[3]] = name
    for ours, place in places.items():
        match = _OUR_EXPERTS.fullmatch(ours)
        theirs = match and firsts.get((match[1], match[2]))
        if theirs and place.names[0] not in stored:
            all_places[ours] = SourceWeight(theirs, place.n_experts)
    return all_places
