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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.json_files import read_fields
from edgedec.export.checkpoints.safetensors_file import StoredTensor, read_tensors
from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import HeadWeight
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
from edgedec.models.quant import PlainTensor

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

_N_COMPARED, _MIN_COSINE = 256, 0.9
"""Rows of the embedding that are compared, and how alike they are at least: 4 bits give 0.99."""


@dataclass(frozen=True)
class Eagle3Folder:
    """A head that was read. tensors: by name, those of the layer as `layers.0`."""

    name: str
    fields: Fields
    tensors: Mapping[str, StoredTensor]

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
        for key in ("hidden_size", "vocab_size"):
            if getattr(config, key) != getattr(target, key):
                raise CheckpointError(
                    f"{self.name} is a draft head of another model: its {key} is "
                    f"{getattr(config, key)}, the model's {getattr(target, key)}"
                )
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
        places = {name: _NAMES.get(name, name) for name in shapes}
        if unread := sorted(set(self.tensors) - _OTHER - set(places.values())):
            raise CheckpointError(f"{self.name}: nothing reads the tensor {unread[0]}")
        weights: dict[str, HeadWeight] = {
            name: self._values(places[name], shape) for name, shape in shapes.items()
        }
        rows = weights["lm_head.weight"]
        assert isinstance(rows, np.ndarray)
        return weights | {"lm_head.weight": rows[np.argsort(self.ids)]}

    def check_tokens(self, parent: BundleWeights, target: ModelConfig) -> None:
        """Raises a CheckpointError where the draft vocabulary or embeddings are another model's."""
        rising = np.sort(self.ids)
        try:
            check_head_ids(rising, target.vocab_size)
        except ConfigError as error:
            raise CheckpointError(f"{self.name}: d2t: {error}") from None
        if (known := self.tensors.get("t2d")) is not None:
            named = np.flatnonzero(known.values().reshape(-1))
            if not np.array_equal(named, rising):
                raise CheckpointError(f"{self.name}: d2t and t2d name different tokens")
        if "embed_tokens.weight" in self.tensors:
            embedding = self._values("embed_tokens.weight", (target.vocab_size, target.hidden_size))
            rows = np.unique(np.linspace(0, target.vocab_size - 1, _N_COMPARED).astype(np.int64))
            alike = _cosine(embedding[rows], parent.matrix("embed_tokens.weight", rows))
            if alike < _MIN_COSINE:
                raise CheckpointError(
                    f"{self.name} is a draft head of another model: its embeddings differ from "
                    f"this model's (cosine {alike:.2f}, expected {_MIN_COSINE} at least)"
                )

    def _values(self, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        tensor = self.tensors.get(name)
        if tensor is None or tensor.shape != shape or tensor.is_raw:
            got = "nothing" if tensor is None else f"{tensor.type}{list(tensor.shape)}"
            raise CheckpointError(f"{self.name}: {name} is {got}, expected {list(shape)}")
        values = PlainTensor(tensor.format, tensor.values()).dequantize()
        if not np.isfinite(values).all():
            raise CheckpointError(f"{self.name}: {name} holds numbers that are not finite")
        return np.array(values, np.float32)


def read_eagle3(folder: Path) -> Eagle3Folder:
    """Returns the head that a folder holds.

    Raises:
        CheckpointError: There is none.
    """
    name, fields = folder.resolve().name, read_fields(folder, "config.json")
    classes = fields.texts("architectures")
    if not any("eagle3" in name.lower() for name in classes):
        raise CheckpointError(
            f"{name} is no EAGLE-3 head, but {', '.join(classes) or 'nothing'}: name a folder "
            "whose config.json says LlamaForCausalLMEagle3, or a file of `train head --head-file`"
        )
    for key, harmless in _PLAIN.items():
        fields.refuse(key, *harmless)
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise CheckpointError(
            f"{name} has {len(files)} safetensors files, expected one: convert a file of PyTorch "
            "with safetensors.torch.save_file"
        )
    stored = read_tensors(files[0])
    tensors = {key.replace("midlayer.", "layers.0."): tensor for key, tensor in stored.items()}
    head = tensors.get("lm_head.weight")
    if head is None or len(head.shape) != 2:
        raise CheckpointError(f"{name} has no matrix lm_head.weight: fetch it again")
    return Eagle3Folder(name, fields, tensors)


def _cosine(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Returns the median cosine of rows."""
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.median((a * b).sum(axis=1) / np.maximum(sizes, 1e-9)))
