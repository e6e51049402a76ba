"""What GGUF headers of decoders share: keys, and names of weights."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edgedec.models.config import MAX_LAYERS, LayerConfig, ModelConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields, shown
from edgedec.models.rope import yarn_factors, yarn_scale
from edgedec.models.weights import RowOrder, SourceWeight

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)


class NotedKeys(dict[str, Any]):
    """Metadata that notes which keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of ``key``."""
        self.read.add(key)
        return super().get(key, default)


_HARMLESS: dict[str, tuple[Any, ...] | None] = {
    "vocab_size": None, "tensor_data_layout": None, "embedding_length_out": None,
    "rope.scaling.finetuned": None, "rope.scaling.original_context_length": None,
    "rope.scaling.type": None, "rope.scaling.factor": None,
    "attention.causal": (True,), "use_parallel_residual": (False,), "pooling_type": (0, 1, 2, 3),
    "attention.layer_norm_epsilon": None, "attention.max_alibi_bias": (0,),
    "attention.clamp_kqv": (0,), "attn_logit_softcapping": (0,), "final_logit_softcapping": (0,),
    "logit_scale": (0, 1), "residual_scale": (0, 1), "embedding_scale": (0, 1),
    "rope.scaling.attn_factor": (1,), "rope.scaling.yarn_log_multiplier": (0,),
    "rope.scale_linear": (0, 1), "expert_used_count": None, "expert_gating_func": (0, 1),
    "expert_weights_norm": (True,), "expert_weights_scale": (0, 1), "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,), "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1), "feed_forward_length": None,
    "leading_dense_block_count": (0,), "interleave_moe_layer_step": (0, 1),
    "nextn_predict_layers": (0,),
}  # fmt: skip
"""Keys that no recipe reads -> the values with which they change nothing; None for any."""


def check_all_read(noted: NotedKeys, origin: str, architecture: str) -> None:
    """Checks that no key of the architecture was passed over.

    Raises:
        UnsupportedModelError: names a key that may change the logits and that no recipe reads.
    """
    for key in sorted(set(noted) - noted.read):
        stem, _, name = key.partition(".")
        if stem != architecture:
            continue
        harmless = _HARMLESS.get(name, ())
        value = noted[key]
        if harmless is not None and not (np.isscalar(value) and value in harmless):
            raise UnsupportedModelError(
                f"{origin}: {key} is {shown(value)}, which the recipe does not read; the model is "
                f"a variant of {architecture} that edgedec does not know"
            )


@dataclass(frozen=True)
class GgufFacts:
    """What a family may read of a GGUF file.

    fields: metadata with full keys such as ``llama.block_count``.
    shapes: shape of every tensor, outermost dimension first.
    rope_factors: values of ``rope_freqs.weight`` and its like, by name; empty where it is absent.
    """

    fields: Fields
    shapes: Mapping[str, tuple[int, ...]]
    rope_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)


def gguf_decoder(
    facts: GgufFacts,
    family: str,
    has_qkv_bias: bool = False,
    has_qk_norm: bool = False,
    can_rotate_partly: bool = False,
    has_windows: bool = False,
    has_experts: bool = False,
    has_recurrence: bool = False,
    is_yarn_truncated: bool = True,
) -> ModelConfig:
    """Returns the config of a pre-norm gated decoder from the GGUF keys of ``family``.

    can_rotate_partly: whether the family's weights are put in order for a ``rotary_size``.
    has_windows: whether the family reads the window; a short one is refused where it does not.
    has_experts: whether the MLPs of all layers are mixtures of experts.
    has_recurrence: whether layers may have no heads of keys, see `gguf_recurrent`, and no MLP.
    is_yarn_truncated: as for `yarn_factors`.

    Raises:
        CheckpointError: A key or the embedding is missing, or of the wrong type.
        UnsupportedModelError: A key asks for what the shared recipe does not do.
    """
    fields = facts.fields
    if EMBEDDING not in facts.shapes:
        raise CheckpointError(f"missing tensor {EMBEDDING}; the file is incomplete")
    hidden_size = fields.integer(f"{family}.embedding_length")
    n_layers = fields.integer(f"{family}.block_count", least=1, most=MAX_LAYERS)
    n_heads = _same_in_all(fields, f"{family}.attention.head_count", n_layers, 0)
    head_size = fields.integer(f"{family}.attention.key_length", hidden_size // max(n_heads, 1))
    fields.refuse(f"{family}.attention.value_length", head_size)
    rotary_size = fields.integer(f"{family}.rope.dimension_count", head_size)
    if not can_rotate_partly:
        fields.refuse(f"{family}.rope.dimension_count", head_size)
    max_positions = fields.integer(f"{family}.context_length")
    if not has_windows:
        _refuse_windows(fields, family, max_positions)
    if not has_experts:
        _refuse_experts(fields, family)
    widths = _mlp_widths(fields, family, n_layers, has_experts, least=0 if has_recurrence else 1)
    theta = fields.number(f"{family}.rope.freq_base", 10000.0)
    config = ModelConfig(
        family=family,
        vocab_size=facts.shapes[EMBEDDING][0],
        hidden_size=hidden_size,
        intermediate_size=max(widths),
        n_layers=n_layers,
        n_heads=n_heads,
        n_kv_heads=_same_in_all(
            fields, f"{family}.attention.head_count_kv", n_layers, n_heads, has_recurrence
        ),
        head_size=head_size,
        max_positions=max_positions,
        rms_norm_eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope_theta=theta,
        rope_scaling=_rope_scaling(
            facts, family, rotary_size, theta, max_positions, is_yarn_truncated
        ),
        rotary_size=0 if rotary_size == head_size else rotary_size,
        has_qkv_bias=has_qkv_bias or "blk.0.attn_q.bias" in facts.shapes,
        has_qk_norm=has_qk_norm,
        has_o_bias="blk.0.attn_output.bias" in facts.shapes,
        has_mlp_bias="blk.0.ffn_gate.bias" in facts.shapes,
        is_head_tied=HEAD not in facts.shapes,
        attention_scale=fields.number(f"{family}.attention.scale", 0.0),
        n_experts=fields.integer(f"{family}.expert_count") if has_experts else 0,
        n_experts_used=fields.integer(f"{family}.expert_used_count") if has_experts else 0,
    )
    if len(set(widths)) == 1:
        return config
    layers = tuple(LayerConfig(n or max(widths), theta, has_mlp=n > 0) for n in widths)
    return dataclasses.replace(config, layers=layers)


def gguf_recurrent(fields: Fields, family: str, n_layers: int) -> list[int]:
    """Returns the layers that have no heads of keys, and so a recurrence."""
    if fields.get(key := f"{family}.attention.head_count_kv") is None:
        return []
    return [i for i, n in enumerate(_by_layer(fields, key, n_layers, least=0)) if not n]


def _by_layer(fields: Fields, key: str, n_layers: int, least: int = 1) -> tuple[int, ...]:
    """Returns the number of each layer, where a file states one for all or a list."""
    value = fields.get(key)
    if not isinstance(value, np.ndarray):
        return (fields.integer(key, least=least),) * n_layers
    numbers = fields.nested(key, {"": value.tolist()}).integers("", least=least)
    if len(numbers) != n_layers:
        fields.fail(key, list(numbers), f"a number, or {n_layers} of them")
    return numbers


def gguf_windowed(fields: Fields, key: str, n_layers: int, period: int) -> list[bool]:
    """Returns which layers have a window: all but one in ``period``, or as a file lists them."""
    value = fields.get(key)
    if isinstance(value, np.ndarray):
        if len(value) != n_layers:
            fields.fail(key, value.tolist(), f"a number, or {n_layers} of them")
        return [bool(flag) for flag in value]
    period = fields.integer(key, period, least=0)
    return [period > 0 and (i + 1) % period != 0 for i in range(n_layers)]


def _same_in_all(
    fields: Fields, key: str, n_layers: int, default: int, has_recurrence: bool = False
) -> int:
    """Returns a number that all layers share; but for those with 0 if ``has_recurrence``."""
    if fields.get(key) is None:
        return default
    numbers = _by_layer(fields, key, n_layers, least=0 if has_recurrence else 1)
    numbers = tuple(filter(None, numbers)) or numbers
    if len(set(numbers)) > 1:
        raise UnsupportedModelError(
            f"{fields.origin}: {key} differs from layer to layer ({min(numbers)} to "
            f"{max(numbers)}), expected one number for all"
        )
    return numbers[0]


def _mlp_widths(
    fields: Fields, family: str, n_layers: int, has_experts: bool, least: int
) -> tuple[int, ...]:
    """Returns the width of each layer's MLP, 0 for none, or of each of its experts."""
    of_experts = f"{family}.expert_feed_forward_length"
    if has_experts and fields.get(of_experts) is not None:
        return _by_layer(fields, of_experts, n_layers)
    return _by_layer(fields, f"{family}.feed_forward_length", n_layers, least)


def _refuse_experts(fields: Fields, family: str) -> None:
    fields.refuse(f"{family}.expert_count", 0)
    fields.get(f"{family}.expert_shared_feed_forward_length")  # of experts there are none of


def _refuse_windows(fields: Fields, family: str, max_positions: int) -> None:
    """Checks that a window, if there is one, is no shorter than the context."""
    window = fields.integer(key := f"{family}.attention.sliding_window", 0)
    if 0 < window < max_positions:
        raise UnsupportedModelError(
            f"{fields.origin}: {key} is {window}; attention windows shorter than the context of "
            f"{max_positions} are not supported"
        )
    fields.get(f"{family}.attention.sliding_window_pattern")  # of a window there is none of


def _rope_scaling(
    facts: GgufFacts,
    family: str,
    rotary_size: int,
    theta: float,
    max_positions: int,
    is_yarn_truncated: bool,
) -> RopeScaling:
    fields = facts.fields
    for name, factors in facts.rope_factors.items():
        if len(factors) != rotary_size // 2 or not all(0 < f < 1e31 for f in factors):
            raise CheckpointError(
                f"{fields.origin}: {name} holds {len(factors)} values, expected "
                f"{rotary_size // 2} positive ones"
            )
    if facts.rope_factors:
        fields.refuse(f"{family}.rope.scaling.factor", 0, 1)  # both at once
    if factors := facts.rope_factors.get(ROPE_FACTORS, ()):
        return RopeScaling("factors", factors=factors)
    if long_factors := facts.rope_factors.get(LONG_FACTORS, ()):
        return RopeScaling(
            "longrope",
            factor=fields.number(f"{family}.rope.scaling.attn_factor", 1.0),
            original_max_positions=fields.integer(f"{family}.rope.scaling.original_context_length"),
            factors=long_factors,
            short_factors=facts.rope_factors.get(SHORT_FACTORS, ()),
        )
    kind = fields.text(f"{family}.rope.scaling.type", "")
    factor = fields.number(f"{family}.rope.scaling.factor", 0.0)
    if not kind:
        # Files older than the type key state a linear factor alone.
        factor = factor or fields.number(f"{family}.rope.scale_linear", 0.0)
        kind = "linear" if factor not in (0.0, 1.0) else "none"
    if kind == "none" or (kind in ("linear", "yarn", "longrope") and factor == 0):
        return RopeScaling()  # without a factor nothing is stretched
    if kind == "linear" and factor > 0:
        return RopeScaling("linear", factor=factor)
    if kind == "yarn" and factor > 0:
        stem = f"{family}.rope.scaling"
        return _yarn(fields, stem, factor, theta, rotary_size, max_positions, is_yarn_truncated)
    raise UnsupportedModelError(
        f"{fields.origin}: RoPE scaling {kind[:60]!r} with factor {factor} is not supported; "
        f"known: none, linear and yarn with a positive factor, {ROPE_FACTORS}"
    )


def _yarn(
    fields: Fields,
    stem: str,
    factor: float,
    theta: float,
    size: int,
    max_positions: int,
    is_truncated: bool,
) -> RopeScaling:
    """Returns YaRN's scaling.

    Source: ggml-org/llama.cpp ``src/llama-context.cpp``, ggml ``rope_yarn`` (MIT): what absent
    keys mean.
    """
    original = fields.integer(f"{stem}.original_context_length", max_positions, least=2)
    betas = (
        fields.number(f"{stem}.yarn_beta_fast", 32.0),
        fields.number(f"{stem}.yarn_beta_slow", 1.0),
    )
    fields.refuse(f"{stem}.yarn_ext_factor", 1.0, -1.0)
    scale = fields.number(f"{stem}.attn_factor", 1.0) * yarn_scale(factor)
    # Converters write the whole factor or 1 here. llama.cpp computes with neither.
    whole_scale = fields.number(key := f"{stem}.yarn_attn_factor", 1.0)
    if not any(math.isclose(whole_scale, usual, rel_tol=1e-4) for usual in (1.0, scale)):
        fields.fail(key, whole_scale, f"1 or {scale:.6g}, which follows from the factor")
    if (of_all_dims := fields.number(f"{stem}.yarn_log_multiplier", 0.0)) > 0:
        scale /= yarn_scale(factor, of_all_dims)
    factors = yarn_factors(theta, size, factor, original, betas, is_truncated)
    return RopeScaling("factors", factor=scale, factors=factors)


_LAYER_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.o_proj.bias": "attn_output.bias",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate_proj.bias": "ffn_gate.bias",
    "mlp.up_proj.bias": "ffn_up.bias",
    "mlp.down_proj.bias": "ffn_down.bias",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_proj.weight": "ffn_gate_exps.weight",
    "mlp.experts.up_proj.weight": "ffn_up_exps.weight",
    "mlp.experts.down_proj.weight": "ffn_down_exps.weight",
}
SHARED_IN_GGUF = {
    "shared_gate": "ffn_gate_inp_shexp",
    "shared.gate_proj": "ffn_gate_shexp",
    "shared.up_proj": "ffn_up_shexp",
    "shared.down_proj": "ffn_down_shexp",
}
"""Parts of the expert that all tokens go through."""
_MODEL_NAMES = {
    "embed_tokens.weight": EMBEDDING,
    "norm.weight": "output_norm.weight",
    "lm_head.weight": HEAD,
}


def stated_as(name: str, other: str, models: str) -> Callable[[GgufFacts], ModelConfig]:
    """Returns what refuses headers of architecture ``name``: ``models`` state ``other``."""

    def read_gguf(facts: GgufFacts) -> ModelConfig:
        raise UnsupportedModelError(
            f"{facts.fields.origin}: general.architecture is '{name}', expected '{other}', which "
            f"GGUF files of {models} models state"
        )

    return read_gguf


def gguf_weight(config: ModelConfig, name: str, order: RowOrder | None = None) -> SourceWeight:
    """Returns where our weight ``name`` lies, by its usual name; experts are stacked."""
    n_experts = config.n_experts if ".experts." in name else 0
    return SourceWeight(gguf_name(name), n_experts, order=order)


def gguf_name(name: str) -> str:
    """Returns the GGUF name of our weight ``name``."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    layer, rest = layer_part(name)
    return f"blk.{layer}.{_LAYER_NAMES[rest]}"


def layer_part(name: str) -> tuple[int, str]:
    """Returns the layer of our weight ``layers.I.REST``, and the rest."""
    _, layer, rest = name.split(".", 2)
    return int(layer), rest
