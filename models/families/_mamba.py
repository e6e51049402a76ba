"""Mamba-2 as checkpoints state and store it: one projection for gate, channels and steps."""

from __future__ import annotations

import math

from edgedec.models.config import ModelConfig
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families._gguf import GgufFacts
from edgedec.models.fields import Fields, shown
from edgedec.models.recurrence import MAX_CONV_SIZE, Recurrence
from edgedec.models.weights import SourceWeight

_HF_NAMES = {"conv": "conv1d", "a_log": "A_log", "skip": "D"}
_GGUF_NAMES = {
    "conv.weight": "ssm_conv1d.weight", "conv.bias": "ssm_conv1d.bias", "a_log": "ssm_a",
    "dt_bias": "ssm_dt.bias", "skip": "ssm_d",
}  # fmt: skip
_INFINITY = {"__float__": "Infinity"}


def hf_mamba(fields: Fields, width: int) -> Recurrence:
    """Returns what the keys ``mamba_*`` state. width: numbers of all values of a token."""
    _refuse_step_limits(fields)
    n_heads = fields.integer("mamba_n_heads", 128, least=1)
    if fields.get("mamba_d_head") not in (None, "auto", width // n_heads) or width % n_heads:
        fields.fail("mamba_d_head", fields.get("mamba_d_head"), f"{width} / {n_heads}")
    return Recurrence(
        "mamba2",
        conv_size=fields.integer("mamba_d_conv", 4, least=2, most=MAX_CONV_SIZE),
        has_conv_bias=fields.flag("mamba_conv_bias", True),
        has_bias=fields.flag("mamba_proj_bias", False),
        n_heads=n_heads,
        head_size=width // n_heads,
        n_groups=fields.integer("mamba_n_groups", 1, least=1),
        state_size=fields.integer("mamba_d_state", 256, least=1),
    )


def _refuse_step_limits(fields: Fields) -> None:
    """Refuses steps that are bounded by ``time_step_limit``.

    Infinity is a number or, of transformers 5, a table.
    """
    if fields.get("time_step_limit") is None:
        return
    limits = fields.items("time_step_limit")
    if len(limits) != 2 or limits[0] != 0 or limits[1] not in (math.inf, _INFINITY):
        limits_text = " to ".join(map(shown, limits[:2]))
        raise UnsupportedModelError(
            f"{fields.origin}: time_step_limit is {limits_text}, only 0 to infinity is supported"
        )


def gguf_mamba(facts: GgufFacts, architecture: str) -> Recurrence:
    """Returns what the keys ``ssm.*`` of a GGUF header state."""
    fields, ssm = facts.fields, f"{architecture}.ssm"
    n_heads = fields.integer(f"{ssm}.time_step_rank", least=1)
    return Recurrence(
        "mamba2",
        conv_size=fields.integer(f"{ssm}.conv_kernel", least=2, most=MAX_CONV_SIZE),
        has_conv_bias=any(key.endswith(".ssm_conv1d.bias") for key in facts.shapes),
        n_heads=n_heads,
        head_size=fields.integer(f"{ssm}.inner_size", least=n_heads) // n_heads,
        n_groups=fields.integer(f"{ssm}.group_count", 1, least=1),
        state_size=fields.integer(f"{ssm}.state_size", least=1),
    )


def mamba_in_hf(config: ModelConfig, prefix: str, part: str) -> SourceWeight:
    """Returns where the weight ``part`` of a layer's recurrence lies below ``prefix``."""
    stem, _, kind = part.partition(".")
    if stem in (rows := _first_rows(config.recurrence)):
        return SourceWeight(f"{prefix}.in_proj.{kind}", first_row=rows[stem])
    return SourceWeight(f"{prefix}.{_HF_NAMES.get(stem, stem)}{'.' * bool(kind)}{kind}")


def mamba_in_gguf(config: ModelConfig, layer: int, part: str) -> SourceWeight:
    """Returns where the weight ``part`` of a layer's recurrence lies; norms have a row a group.

    Source: ggml-org/llama.cpp ``gguf-py/gguf/constants.py``, ``conversion/mamba.py`` (MIT).
    """
    mamba = config.recurrence
    stem, _, kind = part.partition(".")
    if stem in (rows := _first_rows(mamba)):
        return SourceWeight(f"blk.{layer}.ssm_in.{kind}", first_row=rows[stem])
    theirs = _GGUF_NAMES.get(part, f"ssm_{stem.removesuffix('_proj')}.{kind}")
    is_grouped = stem == "norm" and mamba.n_groups > 1
    return SourceWeight(
        f"blk.{layer}.{theirs}",
        is_negative_exp=part == "a_log",
        n_folded=mamba.value_size // mamba.n_groups if is_grouped else 1,
    )


def _first_rows(mamba: Recurrence) -> dict[str, int]:
    """Returns the first row of each projection in the tensor that joins them."""
    return {
        "z_proj": 0, "x_proj": mamba.value_size,
        "dt_proj": mamba.value_size + mamba.conv_channels,
    }  # fmt: skip
