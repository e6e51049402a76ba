"""EAGLE-3 heads as their publishers lay them out, put beside the models that they are of.

A folder of a `config.json` and safetensors: `fc` over hidden states of three layers, one decoder
layer (`midlayer`, or `layers.0`) that reads the token beside them, `norm` and `lm_head` over a
draft vocabulary; `d2t` is what to add to its ids for the model's, `t2d` says which of the model's
tokens it has.

Source: sgl-project/SpecForge ``llama3_eagle.py``, sgl-project/sglang ``llama_eagle3.py`` and
``set_eagle3_layers_to_capture`` (Apache-2.0); Tencent/AngelSlim has the same layout. Their keys for
other norms are refused, and so is what vllm-project/speculators trains, which has these norms.
"""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import HeadWeight
from edgedec.export.heads.head_folder import HeadFolder, read_head_tensors
from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import (
    EAGLE3,
    EAGLE3_LAYERS,
    INPUT,
    STATE_NORM,
    feature_width,
    head_shapes,
)
from edgedec.models.errors import CheckpointError, ConfigError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from edgedec.models.head_ids import check_head_ids

_OTHER = {"d2t", "t2d", "embed_tokens.weight"}
_NAMES = {INPUT: "fc.weight", STATE_NORM: "layers.0.hidden_norm.weight"}
_PLAIN: dict[str, tuple[Any, ...]] = {
    "fc_norm": (False,),
    "norm_before_fc": (False,),
    "norm_before_residual": (False,),
    "norm_output": (True,),
    "parallel_drafting": (False,),
    "transformer_layer_config": (),
}
"""Keys of a config.json -> their values in heads that are read."""


class Eagle3Folder(HeadFolder):
    """One layer over the states of three. tensors: those of the layer as `layers.0`."""

    kind = EAGLE3

    def layers(self, n_layers: int) -> tuple[int, ...]:
        """Returns how many of the model's ``n_layers`` are before each state that it reads."""
        eagle_config = self.fields.table("eagle_config", {})
        layer_ids = eagle_config.get("eagle_aux_hidden_state_layer_ids")
        if layer_ids is None:
            return (2, n_layers // 2, n_layers - 3)
        ids = eagle_config.integers("eagle_aux_hidden_state_layer_ids", 0, n_layers - 1)
        if len(ids) != EAGLE3_LAYERS or list(ids) != sorted(set(ids)):
            eagle_config.fail("eagle_aux_hidden_state_layer_ids", list(ids), "three rising layers")
        return tuple(layer + 1 for layer in ids)

    @cached_property
    def ids(self) -> npt.NDArray[np.int64]:
        """The model's ids of the draft vocabulary, in its order."""
        n = self.tensors["lm_head.weight"].shape[0]
        if (offsets := self.tensors.get("d2t")) is None:
            return np.arange(n)
        if offsets.type != "I64" or offsets.shape != (n,):
            raise CheckpointError(
                f"{self.name}: d2t is {offsets.type}{list(offsets.shape)}, expected I64[{n}]: "
                "fetch it again"
            )
        ids: npt.NDArray[np.int64] = np.arange(n) + offsets.values()
        return ids

    def config(self, target: ModelConfig) -> ModelConfig:
        """Returns the configuration of the head, for a model of the configuration ``target``.

        Raises:
            CheckpointError: It is the head of another model.
        """
        config = find_family("llama").read_hf(self.fields)
        self.check_sizes(config, target)
        wide = self.fields.integer("target_hidden_size", config.hidden_size)
        if config.n_layers != 1 or wide != config.hidden_size or target.embedding_scale != 1:
            raise CheckpointError(
                f"{self.name}: EAGLE-3 heads of one layer, as wide as their model, are read; this "
                f"has {config.n_layers} layers, and reads states of {wide} numbers"
            )
        return dataclasses.replace(
            config,
            max_positions=target.max_positions,
            is_head_tied=False,
            trimmed_head_size=self.tensors["lm_head.weight"].shape[0],
        )

    def weights(self, config: ModelConfig) -> dict[str, HeadWeight]:
        """Returns the head's own weights, rows of the LM head by rising ids.

        Raises:
            CheckpointError: One is missing, has another shape, or nobody reads it.
        """
        width = feature_width(config, EAGLE3_LAYERS, EAGLE3)
        shapes = head_shapes(config, width, EAGLE3)
        del shapes["embed_tokens.weight"]
        weights = self.own_weights(shapes, _NAMES, _OTHER)
        rows = weights["lm_head.weight"]
        assert isinstance(rows, np.ndarray)
        return weights | {"lm_head.weight": rows[np.argsort(self.ids)]}

    def rising_ids(self, target: ModelConfig) -> npt.NDArray[np.int64]:
        """Returns the draft vocabulary."""
        return np.sort(self.ids)

    def check_tokens(self, parent: BundleWeights, target: ModelConfig) -> None:
        """Raises a CheckpointError where the draft vocabulary or embeddings are another model's."""
        rising = self.rising_ids(target)
        try:
            check_head_ids(rising, target.vocab_size)
        except ConfigError as error:
            raise CheckpointError(f"{self.name}: d2t: {error}") from None
        if (known := self.tensors.get("t2d")) is not None:
            named = np.flatnonzero(known.values().reshape(-1))
            if not np.array_equal(named, rising):
                raise CheckpointError(f"{self.name}: d2t and t2d name different tokens")
        super().check_tokens(parent, target)


def read_eagle3(folder: Path, fields: Fields) -> Eagle3Folder:
    """Returns the head of a ``folder`` whose config.json is ``fields``.

    Raises:
        CheckpointError: It is damaged.
        UnsupportedModelError: It has other norms.
    """
    name = folder.resolve().name
    for key, harmless in _PLAIN.items():
        fields.refuse(key, *harmless)
    stored = read_head_tensors(folder)
    tensors = {key.replace("midlayer.", "layers.0."): tensor for key, tensor in stored.items()}
    head = tensors.get("lm_head.weight")
    if head is None or len(head.shape) != 2:
        raise CheckpointError(f"{name} has no matrix lm_head.weight: fetch it again")
    return Eagle3Folder(name, fields, tensors)
