"""What ``adapter_config.json`` says of a LoRA adapter, and what of it is not applied.

Sources: huggingface/peft ``src/peft/tuners/lora/config.py``, ``model.py`` and ``layer.py`` (keys,
ranks and scales, Apache-2.0), ml-explore/mlx-lm ``mlx_lm/tuner/utils.py`` (MIT).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgedec.export.checkpoints.adapter_names import matches_pattern
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields, shown

CONFIG = "adapter_config.json"
MERGE_WITH_PEFT = (
    "merge it with PEFT and export the result: PeftModel.from_pretrained(BASE, ADAPTER)"
    ".merge_and_unload().save_pretrained(NEW)"
)

_APPLIED = {
    "target_parameters",
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "use_dora",
    "bias", "lora_bias", "modules_to_save", "trainable_token_indices", "init_lora_weights",
    "ensure_weight_tying",
}  # fmt: skip
_HARMLESS = {
    "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "target_modules", "exclude_modules", "lora_dropout", "fan_in_fan_out",
    "layers_to_transform", "layers_pattern", "megatron_config", "megatron_core", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "velora_config", "qalora_group_size",
    "runtime_config", "base_model_class", "parent_library",
    "unsloth_fixed", "enable_lora", "merge_weights",
}  # fmt: skip
"""Keys that matter to trainings alone, or that the names of the adapter's weights repeat.

``fan_in_fan_out`` is for layers of GPT-2: PEFT resets it for linear ones.
"""
_REFUSED = {
    "use_qalora": "its inputs are averaged in groups",
    "alora_invocation_tokens": "it acts only after certain tokens, so it cannot be merged",
    "layer_replication": "it adapts copies of layers",
    "use_bdlora": "its matrices are in blocks",
    "arrow_config": "it chooses among adapters for each token, so it cannot be merged",
    "monteclora_config": "its weights are random",
    "kasa_config": "it changes the base weights",
}
_EDITING_STARTS = ("pissa", "olora", "corda", "loftq", "lora_ga", "loraga")
"""Ways to begin a training that subtract from the base weights what the adapter begins with.

PEFT subtracts it again when it loads the adapter; other libraries do not.
"""


@dataclass(frozen=True)
class AdapterConfig:
    """Ranks and scales of an adapter.

    rank: of modules that ``rank_pattern`` does not name. is_scaled_by_root: rsLoRA.
    parameters: names, or their ends, of parameters that are adapted by themselves.
    is_tied: a head that shares the embedding shares what is added to it.
    unapplied: a line for each key that nothing here applies.
    """

    rank: int
    alpha: float
    is_scaled_by_root: bool
    rank_pattern: Mapping[str, Any]
    alpha_pattern: Mapping[str, Any]
    token_ids: Mapping[str, tuple[int, ...]]
    parameters: tuple[str, ...] = ()
    is_tied: bool = False
    unapplied: tuple[str, ...] = ()

    def parameters_of(self, module: str, is_known: Callable[[str], bool]) -> tuple[str, ...]:
        """Returns the adapted parameters of ``module``, in the order in which PEFT wraps them.

        is_known: whether the model has a parameter of that name.
        """
        names = (f"{module}.{parameter.rpartition('.')[2]}" for parameter in self.parameters)
        known = {
            name
            for name, parameter in zip(names, self.parameters, strict=True)
            if f".{name}".endswith(f".{parameter}") and is_known(name)
        }
        return tuple(sorted(known, reverse=True))  # gate_up_proj before down_proj, as they are made

    def rank_of(self, module: str) -> int:
        """Returns the rank of the pair of matrices of ``module``."""
        return int(_by_pattern(self.rank_pattern, module, self.rank))

    def scale_of(self, module: str) -> float:
        """Returns what the product of the pair of ``module`` is multiplied by."""
        rank, alpha = self.rank_of(module), _by_pattern(self.alpha_pattern, module, self.alpha)
        return float(alpha) / (math.sqrt(rank) if self.is_scaled_by_root else rank)


def _by_pattern(patterns: Mapping[str, Any], module: str, default: float) -> float:
    """Returns the number of the first pattern that ``module`` ends with."""
    for pattern, value in patterns.items():
        if matches_pattern(pattern, module):
            return float(value)
    return default


def read_config(folder: Path) -> AdapterConfig:
    """Returns what the adapter's configuration says.

    Raises:
        CheckpointError: It is missing or broken.
        UnsupportedModelError: It asks for what merging cannot do, or is no LoRA adapter.
    """
    fields = read_fields(folder)
    if fields.get("peft_type") is None:
        fields.refuse_with(
            "peft_type", "is missing, expected the folder of a LoRA adapter, as PEFT saves it"
        )
    fields.refuse("peft_type", "LORA")
    _refuse_start(fields)
    for key, reason in _REFUSED.items():
        if fields.get(key):
            raise UnsupportedModelError(
                f"{fields.origin}: {key} is {shown(fields.get(key))}: {reason}; {MERGE_WITH_PEFT}, "
                "if PEFT can merge it"
            )
    bias = fields.text("bias", "none")
    if bias not in ("none", "all", "lora_only"):
        fields.fail("bias", bias, "'none', 'all' or 'lora_only'")
    return AdapterConfig(
        fields.integer("r", least=1),
        fields.number("lora_alpha"),
        fields.flag("use_rslora", False),
        _patterns(fields, "rank_pattern", is_rank=True),
        _patterns(fields, "alpha_pattern"),
        _token_ids(fields),
        _parameters(fields),
        fields.flag("ensure_weight_tying", False),
        tuple(
            f"{fields.origin}: {key} is {shown(value)}, which is not applied"
            for key, value in fields.values.items()
            if value and key not in _APPLIED | _HARMLESS
        ),
    )


def read_fields(folder: Path) -> Fields:
    """Returns the fields of the configuration in ``folder``."""
    if folder.is_file() and folder.suffix == ".gguf":
        raise UnsupportedModelError(
            f"{folder}: adapters in GGUF files are not read: name the folder that PEFT saved, from "
            "which the file was converted"
        )
    path = folder / CONFIG
    try:
        values = json.loads(path.read_bytes())
    except OSError:
        raise CheckpointError(
            f"{folder}: has no {CONFIG}; expected the folder of a LoRA adapter, as PEFT saves it"
        ) from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: is not JSON; fetch it again") from None
    return Fields(values, f"{folder.name}/{CONFIG}", CheckpointError)


def _refuse_start(fields: Fields) -> None:
    start = fields.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_EDITING_STARTS):
        raise UnsupportedModelError(
            f"{fields.origin}: init_lora_weights is {shown(start)}, so the training changed the "
            f"base weights, too, and merging into those as published gives another model; "
            f"{MERGE_WITH_PEFT}"
        )


def _patterns(fields: Fields, key: str, is_rank: bool = False) -> Mapping[str, Any]:
    table = fields.table(key, {})
    for pattern in table.values:
        if is_rank:
            table.integer(pattern, least=1)
        table.number(pattern)
        try:
            re.compile(rf"(.*\.)?({pattern})$")
        except (re.error, RecursionError, OverflowError):
            fields.fail(key, pattern, "names or regular expressions of modules")
    return table.values


def _parameters(fields: Fields) -> tuple[str, ...]:
    parameters = fields.get("target_parameters") or []
    if not isinstance(parameters, list) or not all(isinstance(name, str) for name in parameters):
        fields.fail("target_parameters", parameters, "names of parameters")
    return tuple(parameters)


def _token_ids(fields: Fields) -> Mapping[str, tuple[int, ...]]:
    token_ids = fields.get("trainable_token_indices")
    if not token_ids:
        return {}
    if isinstance(token_ids, Mapping):
        table = fields.table("trainable_token_indices")
        return {module: table.integers(module, least=0) for module in table.values}
    return {"embed_tokens": fields.integers("trainable_token_indices", least=0)}
