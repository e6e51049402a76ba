"""What Gemma 3n and 4 share: inputs of layers, and layers that share keys and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from edgedec.models.config import ModelConfig
from edgedec.models.errors import ConfigError
from edgedec.models.families._gguf import gguf_name, layer_part
from edgedec.models.families._hf import hf_name
from edgedec.models.families._post_norms import post_norm_names
from edgedec.models.families.gemma2 import with_gemma
from edgedec.models.layer_inputs import LAYER_TABLE
from edgedec.models.weights import SourceWeight

_IN_GGUF = {
    LAYER_TABLE: "per_layer_token_embd.weight",
    "per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
_OF_LAYER_IN_GGUF = {
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}

_KV_PARTS = ("k_proj", "v_proj", "k_norm")


def with_layer_inputs(
    config: ModelConfig, logit_softcap: float, layer_input_size: int, layer_input_tokens: int
) -> ModelConfig:
    """Returns ``config`` with what both families add to Gemma.

    layer_input_size: 0 for a model without inputs of layers.
    """
    gemma = with_gemma(config, query_size=1.0, attention_softcap=0.0, logit_softcap=logit_softcap)
    return dataclasses.replace(
        gemma,
        has_value_norm=True,
        layer_input_size=layer_input_size,
        layer_input_tokens=layer_input_tokens if layer_input_size else 0,
    )


def layer_input_weight(
    config: ModelConfig, name: str, in_hf: Mapping[str, str], in_gguf: Mapping[str, str]
) -> tuple[SourceWeight, SourceWeight]:
    """Returns where a weight lies in a Hugging Face directory, and in a GGUF file.

    in_hf, in_gguf: the family's own names within a layer, without ``.weight``.
    """
    if (theirs := _IN_GGUF.get(name)) is not None:
        n_folded = config.n_layers if name == LAYER_TABLE else 1
        return (
            SourceWeight(hf_name(name), n_folded=n_folded),
            SourceWeight(theirs, n_folded=n_folded),
        )
    if name.startswith("layers."):
        layer, rest = layer_part(name)
        part = rest.removesuffix(".weight")
        end = rest.removeprefix(part)
        if (theirs := {**_OF_LAYER_IN_GGUF, **in_gguf}.get(part)) is not None:
            hf = f"model.layers.{layer}.{in_hf.get(part, part)}{end}"
            return SourceWeight(hf), SourceWeight(f"blk.{layer}.{theirs}.weight")
    hf, gguf = post_norm_names(name)
    return SourceWeight(hf), SourceWeight(gguf)


def unread_kv(config: ModelConfig) -> frozenset[str]:
    """Returns stored names of what layers have that read other layers' keys and values."""
    layers = (i for i in range(config.n_layers) if config.layer(i).kv_layer is not None)
    names = (f"layers.{i}.self_attn.{part}.weight" for i in layers for part in _KV_PARTS)
    return frozenset(stored for name in names for stored in (hf_name(name), gguf_name(name)))


def with_shared_kv(config: ModelConfig, n_shared: int) -> ModelConfig:
    """Returns ``config`` whose last ``n_shared`` layers have no keys and values of their own.

    They read those of the last layer before them that rotates and sees as they do.

    Raises:
        ConfigError: There is none.
    """
    layers = [config.layer(i) for i in range(config.n_layers)]
    first = config.n_layers - n_shared
    for i in range(max(first, 0), config.n_layers):
        alike = [
            j for j in range(max(first, 0))
            if dataclasses.replace(
                layers[j],
                intermediate_size=layers[i].intermediate_size,
                gate_sparsity=layers[i].gate_sparsity,
            ) == layers[i]
        ]  # fmt: skip
        if not alike:
            raise ConfigError(
                f"{n_shared} of {config.n_layers} layers share keys and values, and none before "
                f"them is like layer {i}, expected one of each kind"
            )
        layers[i] = dataclasses.replace(layers[i], kv_layer=alike[-1])
    return dataclasses.replace(config, layers=tuple(layers))
