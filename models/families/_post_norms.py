"""Names of weights of families that norm what a sub-layer adds to the residual stream."""

from __future__ import annotations

from edgedec.models.blocks import decoder_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.families._gguf import gguf_name
from edgedec.models.families._hf import hf_name
from edgedec.models.weights import SourceWeight, Weight

_NAMES = {
    "self_attn.post_norm": ("post_attention_layernorm", "post_attention_norm"),
    "post_attention_layernorm": ("pre_feedforward_layernorm", "ffn_norm"),
    "mlp.post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}
"""Our name within a layer -> that of Hugging Face and that of GGUF."""


def post_norm_weights(config: ModelConfig, hf_norm_offset: float = 0.0) -> dict[str, Weight]:
    """Returns the shape of each weight and where it lies.

    hf_norm_offset: what safetensors files leave out of norm weights; GGUF files have it in them.
    """
    weights = {}
    for name, shape in decoder_shapes(config).items():
        is_norm = name.endswith("norm.weight")
        in_hf, in_gguf = post_norm_names(name)
        weights[name] = Weight(
            shape,
            hf=SourceWeight(in_hf, offset=hf_norm_offset if is_norm else 0.0),
            gguf=SourceWeight(in_gguf),
        )
    return weights


def post_norm_names(name: str) -> tuple[str, str]:
    """Returns the Hugging Face name and the GGUF name of our weight ``name``."""
    parts = name.split(".", 2)
    part = parts[-1].removesuffix(".weight")
    if parts[0] != "layers" or part not in _NAMES:
        return hf_name(name), gguf_name(name)
    in_hf, in_gguf = _NAMES[part]
    return f"model.layers.{parts[1]}.{in_hf}.weight", f"blk.{parts[1]}.{in_gguf}.weight"
