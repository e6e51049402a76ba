"""What GGUF headers of decoders share: keys, and names of weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from edgedec.models.config import ModelConfig, RopeScaling
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields
from edgedec.models.weights import RowOrder, SourceWeight

EMBEDDING, HEAD = "token_embd.weight", "output.weight"
ROPE_FACTORS, LONG_FACTORS, SHORT_FACTORS = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
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
) -> ModelConfig:
    """Returns the config of a pre-norm gated decoder from the GGUF keys of ``family``.

    can_rotate_partly: whether the family's weights are put in order for a ``rotary_size``.
    has_windows: whether the family reads the window; a short one is refused where it does not.
    has_experts: whether the MLPs of all layers are mixtures of experts.

    Raises:
        CheckpointError: A key or the embedding is missing, or of the wrong type.
        UnsupportedModelError: A key asks for what the shared recipe does not do.
    """
    fields = facts.fields
    if not has_experts:
        fields.refuse(f"{family}.expert_count", 0)
    n_experts = fields.integer(f"{family}.expert_count") if has_experts else 0
    width = fields.get(f"{family}.expert_feed_forward_length") if has_experts else None
    hidden_size = fields.integer(f"{family}.embedding_length")
    n_heads = fields.integer(f"{family}.attention.head_count")
    head_size = fields.integer(f"{family}.attention.key_length", hidden_size // max(n_heads, 1))
    fields.refuse(f"{family}.attention.value_length", head_size)
    rotary_size = fields.integer(f"{family}.rope.dimension_count", head_size)
    if not can_rotate_partly:
        fields.refuse(f"{family}.rope.dimension_count", head_size)
    max_positions = fields.integer(f"{family}.context_length")
    if not has_windows:
        _refuse_short_window(fields, f"{family}.attention.sliding_window", max_positions)
    if EMBEDDING not in facts.shapes:
        raise CheckpointError(f"missing tensor {EMBEDDING}; the file is incomplete")
    return ModelConfig(
        family=family,
        vocab_size=facts.shapes[EMBEDDING][0],
        hidden_size=hidden_size,
        intermediate_size=fields.integer(
            f"{family}.{'feed' if width is None else 'expert_feed'}_forward_length"
        ),
        n_layers=fields.integer(f"{family}.block_count"),
        n_heads=n_heads,
        n_kv_heads=fields.integer(f"{family}.attention.head_count_kv", n_heads),
        head_size=head_size,
        max_positions=max_positions,
        rms_norm_eps=fields.number(f"{family}.attention.layer_norm_rms_epsilon"),
        rope_theta=fields.number(f"{family}.rope.freq_base", 10000.0),
        rope_scaling=_rope_scaling(facts, family, rotary_size),
        rotary_size=0 if rotary_size == head_size else rotary_size,
        has_qkv_bias=has_qkv_bias,
        has_qk_norm=has_qk_norm,
        is_head_tied=HEAD not in facts.shapes,
        n_experts=n_experts,
        n_experts_used=fields.integer(f"{family}.expert_used_count") if has_experts else 0,
    )


def _refuse_short_window(fields: Fields, key: str, max_positions: int) -> None:
    window = fields.integer(key, 0)
    if 0 < window < max_positions:
        raise UnsupportedModelError(
            f"{fields.origin}: {key} is {window}; attention windows shorter than the context of "
            f"{max_positions} are not supported"
        )


def _rope_scaling(facts: GgufFacts, family: str, rotary_size: int) -> RopeScaling:
    fields = facts.fields
    for name, factors in facts.rope_factors.items():
        if len(factors) != rotary_size // 2 or not all(0 < f < 1e6 for f in factors):
            raise CheckpointError(
                f"{fields.origin}: {name} holds {len(factors)} values, expected "
                f"{rotary_size // 2} positive ones"
            )
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
    if kind == "none":
        return RopeScaling()
    if kind == "linear" and factor > 0:
        return RopeScaling("linear", factor=factor)
    raise UnsupportedModelError(
        f"{fields.origin}: RoPE scaling {kind[:60]!r} with factor {factor} is not supported; "
        f"known: none, linear with a positive factor, {ROPE_FACTORS}"
    )


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
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.router.weight": "ffn_gate_inp.weight",
    "mlp.experts.gate_proj.weight": "ffn_gate_exps.weight",
    "mlp.experts.up_proj.weight": "ffn_up_exps.weight",
    "mlp.experts.down_proj.weight": "ffn_down_exps.weight",
}
_MODEL_NAMES = {
    "embed_tokens.weight": EMBEDDING,
    "norm.weight": "output_norm.weight",
    "lm_head.weight": HEAD,
}


def gguf_weight(config: ModelConfig, name: str, order: RowOrder | None = None) -> SourceWeight:
    """Returns where our weight ``name`` lies, by its usual name; experts are stacked."""
    n_experts = config.n_experts if ".experts." in name else 0
    return SourceWeight(gguf_name(name), n_experts, order=order)


def gguf_name(name: str) -> str:
    """Returns the GGUF name of our weight ``name``."""
    if name in _MODEL_NAMES:
        return _MODEL_NAMES[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{_LAYER_NAMES[rest]}"
