"""Adapters in the layouts of PEFT and of MLX, as edits of weights by their published names."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from edgedec.export.checkpoints.adapter_config import (
    MERGE_WITH_PEFT,
    AdapterConfig,
    read_config,
    read_fields,
)
from edgedec.export.checkpoints.adapter_edits import (
    AddedToVector,
    Edit,
    Floats,
    Pair,
    Replaced,
    TokenRows,
    VectorEdit,
)
from edgedec.export.checkpoints.adapter_names import unapplied_names
from edgedec.export.checkpoints.expert_edits import StackedPair
from edgedec.export.checkpoints.safetensors_file import StoredTensor, read_tensors
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.quant import PlainTensor

WEIGHTS, MLX_WEIGHTS = "adapter_model.safetensors", "adapters.safetensors"
_PREFIX = "base_model.model."
_FUSE_WITH_MLX = "fuse it with mlx_lm.fuse and export the result"
_TEXT_PART = re.compile(r"^(model\.)?language_model\.(model\.)?(?=layers|embed|norm)")
"""What models that see images have before the names of their text model's weights."""
_WRAPPED = ".base_layer"
_TIED = ("lm_head", "embed_tokens")
_KIND = re.compile(
    r"(?P<kind>\.lora_[AB]|\.lora_embedding_[AB]|\.lora_magnitude_vector|\.trainable_tokens_delta)"
    r"(\.(?!(weight|bias)$)(?P<adapter>[^.]+))?(?P<rest>\.weight|\.bias|)$"
)
_SAVED = re.compile(r"\.modules_to_save\.(?P<adapter>[^.]+)(?P<rest>\.(weight|bias))$")
_ORIGINAL = re.compile(r"\.original_module\.(weight|bias)$|\.trainable_tokens_original\.[^.]+$")
"""What a raw ``state_dict`` holds of the base model beside its replacement."""
_WRAPPED_PARAMETER = re.compile(r"(\.base_layer)+\.(?!weight$|bias$)\w+$")
"""What a raw ``state_dict`` holds of the base model's stacked experts, which PEFT leaves as is."""
_OF_BOTH = "whole, of embedding and head"
_OF_TOKENS = re.compile(r"(\.token_adapter)?(\.trainable_tokens_delta|\.base_layer)$")
_PEFT_KINDS = {
    "lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector",
}  # fmt: skip


@dataclass
class Adapter:
    """What an adapter does, by the published names of weights.

    stacked: by the names of parameters of stacked experts.
    is_tied: a head that shares the embedding shares what is added to it.
    unapplied: a line for each setting that is not applied.
    """

    matrices: dict[str, list[Edit]] = field(default_factory=lambda: defaultdict(list))
    vectors: dict[str, list[VectorEdit]] = field(default_factory=lambda: defaultdict(list))
    stacked: dict[str, StackedPair] = field(default_factory=dict)
    is_tied: bool = False
    unapplied: tuple[str, ...] = ()


def read_adapter(
    folder: Path,
    weight: float,
    vocab_size: int,
    modules: Collection[str],
    is_known: Callable[[str], bool],
) -> Adapter:
    """Returns the adapter in ``folder``, to be merged with ``weight``.

    modules: all of the model. is_known: whether the model has a parameter of that name.

    Raises:
        CheckpointError: A file is missing or damaged.
        UnsupportedModelError: It does what merging cannot do.
    """
    is_mlx = folder.is_dir() and (folder / MLX_WEIGHTS).is_file()
    if is_mlx and not (folder / WEIGHTS).is_file():
        return _read_mlx(folder, weight)
    if (folder / "adapters.npz").is_file() and not (folder / WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder}: has adapters.npz, which early versions of mlx-lm wrote, expected "
            f"{MLX_WEIGHTS}: {_FUSE_WITH_MLX}"
        )
    config = read_config(folder)
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(
            f"{folder}: has no {WEIGHTS}; pickled adapters are not read, save it as safetensors "
            "with PEFT: PeftModel.from_pretrained(BASE, ADAPTER).save_pretrained(NEW)"
        )
    parts: dict[str, dict[str, Floats]] = defaultdict(dict)
    stored_modules = {}  # with a pair: by its name in the file, its name in the text model
    for name, tensor in _without_adapter_name(folder, read_tensors(folder / WEIGHTS)).items():
        if _WRAPPED_PARAMETER.search(name):
            continue
        module, kind = _split(folder, name)
        parts[module][kind] = _floats(folder, name, tensor)
        if ".lora_" in name:
            stored_modules[name.removeprefix(_PREFIX).partition(".lora_")[0]] = module
    _remove_copies(parts)
    adapter = Adapter(is_tied=config.is_tied)
    _add_parameters(adapter, folder, parts, config, weight, is_known)
    tied = _TIED if config.is_tied else ()  # PEFT adapts both if one of them is named
    adapted = [
        stored
        for stored, module in stored_modules.items()
        if module in parts and not module.endswith(tied)
    ]
    names = unapplied_names(read_fields(folder), {*modules, *stored_modules}, adapted)
    adapter.unapplied = (*config.unapplied, *names)
    for module, of_module in parts.items():
        _add_peft(adapter, folder, module, of_module, config, weight, vocab_size)
    return adapter


def _without_adapter_name(
    folder: Path, tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Returns tensors as PEFT saves them: a raw ``state_dict`` repeats the adapter's name."""
    matches = {
        name: _SAVED.search(name) or _KIND.search(name)
        for name in tensors
        if not _ORIGINAL.search(name)
    }
    adapters = {match["adapter"] for match in matches.values() if match is not None}
    if adapters <= {None}:
        return dict(tensors)
    if len(adapters) > 1:
        shown_names = ", ".join(sorted(repr(name or "no name")[:40] for name in adapters))
        raise UnsupportedModelError(
            f"{folder}: holds tensors of several adapters ({shown_names}), expected those of one: "
            "save it with PEFT: MODEL.save_pretrained(NEW, selected_adapters=[NAME])"
        )
    return {
        name if match is None else _without(match): tensors[name] for name, match in matches.items()
    }


def _without(match: re.Match[str]) -> str:
    """Returns a tensor's name without that of the adapter."""
    parts = match.groupdict()
    return match.string[: match.start()] + parts.get("kind", "") + parts["rest"]


def _remove_copies(parts: Mapping[str, dict[str, Floats]]) -> None:
    """Removes copies of the embedding, which a raw ``state_dict`` repeats for a tied head."""
    table, head = (parts.get(module, {}) for module in ("model.embed_tokens", "lm_head"))
    for kind in ("whole", "tokens"):
        if kind in table and kind in head and np.array_equal(table[kind], head[kind]):
            del head[kind]
            if kind == "whole":
                table[_OF_BOTH] = table.pop(kind)


def _split(folder: Path, name: str) -> tuple[str, str]:
    """Returns the module and the part of it that the tensor ``name`` of PEFT is."""
    stem = name.removesuffix(".weight")
    module, _, kind = stem.rpartition(".")
    if not name.startswith(_PREFIX):
        raise UnsupportedModelError(
            f"{folder}: holds {name[:80]}, expected names that begin with {_PREFIX}"
        )
    if stem.endswith(".lora_B.bias"):
        module, kind = stem.removesuffix(".lora_B.bias"), "lora_B.bias"
    elif stem.endswith((".token_adapter.trainable_tokens_delta", ".trainable_tokens_delta")):
        module, kind = _OF_TOKENS.sub("", stem), "tokens"
    elif kind not in _PEFT_KINDS:
        is_bias = name.endswith(".bias")
        if not (is_bias or name.endswith(".weight")):
            _refuse_own(folder, name)
        module, kind = name.removesuffix(".bias" if is_bias else ".weight"), "bias"
        kind = kind if is_bias else "whole"
        module = _OF_TOKENS.sub("", module)
    return _TEXT_PART.sub("model.", module.removeprefix(_PREFIX)), kind


def _refuse_own(folder: Path, name: str) -> NoReturn:
    raise UnsupportedModelError(
        f"{folder}: holds {name[:80]}, a parameter of the base model: save the adapter alone, with "
        "PEFT: MODEL.save_pretrained(NEW)"
    )


def _floats(folder: Path, name: str, tensor: StoredTensor) -> Floats:
    if tensor.is_raw:
        raise UnsupportedModelError(
            f"{folder}: {name[:80]} has type {tensor.type}, expected floats"
        )
    values = PlainTensor(tensor.format, tensor.values()).dequantize()
    if not np.isfinite(values).all():
        raise CheckpointError(
            f"{folder}: {name[:80]} holds NaN or infinity, expected finite numbers: fetch the "
            "adapter again, or train it anew if it was saved so"
        )
    return values


def _add_peft(
    adapter: Adapter,
    folder: Path,
    module: str,
    parts: dict[str, Floats],
    config: AdapterConfig,
    weight: float,
    vocab_size: int,
) -> None:
    """Adds what ``parts`` do to ``module``."""
    if (table := parts.pop(_OF_BOTH, None)) is not None:
        adapter.matrices[f"{module}.weight"].append(Replaced(table, weight, is_of_both=True))
    if (whole := parts.pop("whole", None)) is not None:
        if whole.ndim > 2:
            _refuse_own(folder, f"{module}.weight")
        if whole.ndim == 1:
            adapter.vectors[f"{module}.weight"].append(Replaced(whole, weight))
        else:
            adapter.matrices[f"{module}.weight"].append(Replaced(whole, weight))
    if (bias := parts.pop("bias", None)) is not None:
        adapter.vectors[f"{module}.bias"].append(Replaced(bias, weight))
    if (rows := parts.pop("tokens", None)) is not None:
        ids = next((ids for key, ids in config.token_ids.items() if module.endswith(key)), ())
        if rows.ndim != 2 or len(ids) != len(rows):
            raise CheckpointError(
                f"{folder}: trains {len(rows)} tokens of {module}, but trainable_token_indices "
                f"names {len(ids)}; fetch the adapter again"
            )
        edit = TokenRows(ids, rows, weight, vocab_size)
        adapter.matrices[f"{module}.weight"].append(edit)
    if (added := parts.pop("lora_B.bias", None)) is not None:
        scale = np.float32(weight * config.scale_of(module))
        adapter.vectors[f"{module}.bias"].append(AddedToVector(added * scale))
    if parts:
        adapter.matrices[f"{module}.weight"].append(_pair(folder, module, parts, config, weight))


def _add_parameters(
    adapter: Adapter,
    folder: Path,
    parts: dict[str, dict[str, Floats]],
    config: AdapterConfig,
    weight: float,
    is_known: Callable[[str], bool],
) -> None:
    """Moves what adapts parameters by themselves from ``parts`` to ``adapter``.

    A module with several of them is wrapped several times: the first is the innermost.
    """
    for outer in [module for module in parts if not module.endswith(_WRAPPED)]:
        wrappers = [outer]
        while f"{wrappers[-1]}{_WRAPPED}" in parts:
            wrappers.append(wrappers[-1] + _WRAPPED)
        parameters = config.parameters_of(outer, is_known)
        if not parameters:
            continue
        if len(parameters) != len(wrappers):
            raise CheckpointError(
                f"{folder}: adapts {len(wrappers)} parameters of {outer}, target_parameters names "
                f"{len(parameters)}; fetch the adapter again"
            )
        for name, wrapper in zip(parameters, reversed(wrappers), strict=True):
            _add_parameter(adapter, folder, name, parts.pop(wrapper), config, weight)


def _add_parameter(
    adapter: Adapter,
    folder: Path,
    name: str,
    parts: dict[str, Floats],
    config: AdapterConfig,
    weight: float,
) -> None:
    down, up, rank = parts.get("lora_A"), parts.get("lora_B"), config.rank_of(name)
    is_pair = down is not None and up is not None and down.ndim == up.ndim == 2
    if not is_pair or down is None or up is None or len(down) != up.shape[1] or len(down) % rank:
        raise CheckpointError(
            f"{folder}: {name} has {_sizes(down, up)}, expected a pair of rank {rank}: "
            "correct r or rank_pattern in adapter_config.json, or fetch the adapter again"
        )
    scale = weight * config.scale_of(name)
    if len(down) == rank and name.endswith(".weight"):  # a matrix alone, such as a router's
        adapter.matrices[name].append(Pair(down, up, scale))
    else:
        adapter.stacked[name] = StackedPair(down, up, scale)


def _sizes(down: Floats | None, up: Floats | None) -> str:
    """Returns the shapes of a pair of matrices in words."""
    shapes = (None if part is None else list(part.shape) for part in (down, up))
    return " and ".join("no matrix" if shape is None else str(shape) for shape in shapes)


def _pair(
    folder: Path, module: str, parts: dict[str, Floats], config: AdapterConfig, weight: float
) -> Pair:
    rank = config.rank_of(module)
    down, up = parts.get("lora_A"), parts.get("lora_B")
    a, b = parts.get("lora_embedding_A"), parts.get("lora_embedding_B")
    if a is not None and b is not None and a.ndim == b.ndim == 2:
        down, up = np.ascontiguousarray(b.T), np.ascontiguousarray(a.T)
    is_pair = down is not None and up is not None and down.ndim == up.ndim == 2
    if not is_pair or down is None or up is None or not len(down) == up.shape[1] == rank:
        raise CheckpointError(
            f"{folder}: {module} has {_sizes(down, up)}, expected a pair of rank {rank}: "
            "correct r or rank_pattern in adapter_config.json, or fetch the adapter again"
        )
    magnitude = parts.get("lora_magnitude_vector")
    if magnitude is not None:
        magnitude = magnitude.reshape(-1)
        if a is not None or len(magnitude) != len(up):
            raise UnsupportedModelError(
                f"{folder}: {module} has {len(magnitude)} magnitudes (DoRA), expected one for each "
                f"row of a linear layer; {MERGE_WITH_PEFT}"
            )
    return Pair(down, up, weight * config.scale_of(module), magnitude)


def _read_mlx_weights(folder: Path, weight: float) -> Adapter:
    """Returns the whole weights that MLX trained without an adapter."""
    adapter = Adapter()
    for name, tensor in read_tensors(folder / MLX_WEIGHTS).items():
        values = _floats(folder, name, tensor)
        published = _TEXT_PART.sub("model.", name)
        _refuse_stacked(folder, name, values)
        if values.ndim == 1:
            adapter.vectors[published].append(Replaced(values, weight))
        else:
            adapter.matrices[published].append(Replaced(values, weight, is_of_both=True))
    return adapter


def _refuse_stacked(folder: Path, name: str, values: Floats | None) -> None:
    if values is not None and values.ndim > 2:
        raise UnsupportedModelError(
            f"{folder}: adapts {name}, in which experts are stacked: {_FUSE_WITH_MLX}"
        )


def _read_mlx(folder: Path, weight: float) -> Adapter:
    """Returns an adapter that MLX trained: pairs [K, r] and [r, N], and magnitudes of DoRA.

    Those of an embedding are [vocabulary, r] and [r, K].
    """
    config = read_fields(folder)
    if config.get("fine_tune_type") == "full":
        return _read_mlx_weights(folder, weight)
    config.refuse("fine_tune_type", "lora", "dora")
    settings = config.table("lora_parameters")
    rank, scale = settings.integer("rank", least=1), settings.optional("scale", settings.number)
    if scale is None:
        scale = settings.number("alpha") / rank
    parts: dict[str, dict[str, Floats]] = defaultdict(dict)
    for name, tensor in read_tensors(folder / MLX_WEIGHTS).items():
        module, _, kind = name.rpartition(".")
        if kind not in ("lora_a", "lora_b", "m"):
            raise UnsupportedModelError(
                f"{folder}: holds {name[:80]}, expected only lora_a, lora_b and m of linear "
                f"layers: {_FUSE_WITH_MLX}"
            )
        parts[_TEXT_PART.sub("model.", module)][kind] = _floats(folder, name, tensor)
    adapter = Adapter(is_tied="lm_head" not in parts)  # MLX's head is the adapted embedding
    for module, of_module in parts.items():
        down, up = of_module.get("lora_a"), of_module.get("lora_b")
        _refuse_stacked(folder, module, down)
        if down is None or up is None or not down.shape[-1] == len(up) == rank:
            raise CheckpointError(
                f"{folder}: {module} has no pair of matrices of rank {rank}, which "
                f"{config.origin} states; fetch both files again"
            )
        if not module.endswith("embed_tokens"):
            down, up = up.T, down.T
        pair = Pair(
            np.ascontiguousarray(up), np.ascontiguousarray(down), weight * scale, of_module.get("m")
        )
        adapter.matrices[f"{module}.weight"].append(pair)
    return adapter
