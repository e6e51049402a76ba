"""DFlash drafters as z-lab, SpecForge and AngelSlim lay them out, and DeepSeek's DSpark.

Layers of Qwen3 whose keys and values are also made of the target model's states: `fc` over those of
some layers side by side, and `hidden_norm`. `norm` is the last one; embeddings and LM head are the
target model's. In layers with windows rows of a block see those before them alone.

DSpark's rows say the next token, not their own. Its Markov head adds to their logits what follows
from the token before. So does DFlash 2's selector, to those of some candidates, by weights that a
row gives; and convolutions around its sub-layers mix each row of a block with the one before.

Source: z-lab/dflash ``model.py`` (MIT), sgl-project/SpecForge ``dflash.py`` and Tencent/AngelSlim
``qwen_dflash.py`` (Apache-2.0); deepseek-ai/DeepSpec ``dspark/qwen3/modeling.py`` (MIT).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.heads.graph import HeadWeight
from edgedec.export.heads.head_folder import EMBEDDING, HeadFolder, read_head_tensors
from edgedec.models.config import LayerConfig, ModelConfig
from edgedec.models.draft_heads import (
    CONVOLUTIONS,
    DFLASH,
    INPUT,
    STATE_NORM,
    feature_width,
    head_shapes,
)
from edgedec.models.errors import CheckpointError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from edgedec.models.token_pairs import TokenPairs

_OF_MODEL = {EMBEDDING, "lm_head.weight"}
_BEFORE, _AFTER = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
_UNUSED = {"confidence_head.proj.weight", "confidence_head.proj.bias"}
"""It states how sure the drafter is, which `auto` learns by itself."""
_OPTIONS, _MAX_RANK = "dflash_config", 4096
_NAMES = {INPUT: "fc.weight", STATE_NORM: "hidden_norm.weight"}
_LAYER_IDS, _N_LAYERS = "target_layer_ids", "num_target_layers"
_KEYS = {_LAYER_IDS, "mask_token_id", "projector_type", "block_size", "is_causal", "causal"}
_SPARK_KEYS = {
    "attention_mode", "markov_rank", "markov_head_type", "confidence_head_alpha",
    "enable_confidence_head", "confidence_head_with_markov",
}  # fmt: skip
_SECOND_KEYS = {"conv_group_size", "conv_kernel_size", "selector_rank", "selector_top_k"}
"""Those of `dflash_config`; DSpark's, and DFlash 2's, beside them."""

_SELECTOR = "candidate_selector."
_OF_SELECTOR = ("predecessor_codebook", "successor_codebook", "hidden_projection.weight")


class DFlashFolder(HeadFolder):
    """A stack of layers that fills masks in behind a text."""

    kind = DFLASH

    def layers(self, n_layers: int) -> tuple[int, ...]:
        """Returns how many of the model's ``n_layers`` are before each state that it reads."""
        if (theirs := self.fields.integer(_N_LAYERS, n_layers)) != n_layers:
            raise CheckpointError(
                f"{self.name} is a draft head of another model: its {_N_LAYERS} is {theirs}, the "
                f"model has {n_layers} layers"
            )
        options = self._with(_LAYER_IDS)
        ids = options.integers(_LAYER_IDS, 0, n_layers - 2)
        if not ids or list(ids) != sorted(set(ids)):
            options.fail(_LAYER_IDS, list(ids), "rising layers")
        return tuple(layer + 1 for layer in ids)

    def config(self, target: ModelConfig) -> ModelConfig:
        """Returns the configuration of the head, for a model of the configuration ``target``.

        Layers with windows get no more positions than a window has, so that none is cut off.

        Raises:
            CheckpointError: It is the head of another model.
        """
        config = find_family("qwen3").read_hf(self.fields)
        self.check_sizes(config, target)
        if config.has_qkv_bias or target.embedding_scale != 1:
            raise CheckpointError(
                f"{self.name}: DFlash drafters without biases are read, for models that do not "
                "scale embeddings; use another drafter, or none"
            )
        layers = [config.layer(i) for i in range(config.n_layers)]
        mask_token = self._with("mask_token_id").integer(
            "mask_token_id", least=0, most=target.vocab_size - 1
        )
        return dataclasses.replace(
            self._second(config),
            max_positions=min(
                [target.max_positions, *(layer.window for layer in layers if layer.window)]
            ),
            layers=tuple(
                dataclasses.replace(layer, window=0, is_causal=is_causal)
                for layer, is_causal in zip(layers, self._are_causal(layers), strict=True)
            ),
            is_head_tied=False,
            trimmed_head_size=target.n_logits,
            stack="masked",
            predicts_next=self.is_spark,
            mask_token=mask_token,
            block_size=self._with("block_size").integer(
                "block_size", least=2, most=target.max_positions
            ),
        )

    def _are_causal(self, layers: Sequence[LayerConfig]) -> list[bool]:
        """Returns of each layer whether rows of a block see those before them alone.

        Source: vllm-project/vllm ``qwen3_dflash.py`` (Apache-2.0).
        """
        for key in ("is_causal", "causal"):
            if self._with(key).get(key) is not None:
                return [self._with(key).flag(key)] * len(layers)
        return [layer.window > 0 for layer in layers]

    def _with(self, key: str) -> Fields:
        """Returns the table that ``key`` is in: publishers write it beside the others or within."""
        if _OPTIONS in self.fields.values and key in self.fields.table(_OPTIONS).values:
            return self.fields.table(_OPTIONS)
        return self.fields

    def weights(self, config: ModelConfig) -> dict[str, HeadWeight]:
        """Returns the weights that are not the model's.

        Raises:
            CheckpointError: One is missing, has another shape, or nobody reads it.
        """
        n_states = len(self._with(_LAYER_IDS).items(_LAYER_IDS))
        shapes = head_shapes(config, feature_width(config, n_states, DFLASH), DFLASH)
        kept = {name: shape for name, shape in shapes.items() if name not in _OF_MODEL}
        others = {_BEFORE, _AFTER, *_UNUSED} if self.is_spark else set()
        if not config.conv_group:
            return self.own_weights(kept, _NAMES, _OF_MODEL | others)
        size, weights = config.hidden_size, dict[str, HeadWeight]()
        for i, name in product(range(config.n_layers), CONVOLUTIONS):
            stem = f"layers.{i}.{name}"
            base, kernel = f"{stem}.base_kernel", f"{stem}.kernel_projection.weight"
            n_groups = size // config.conv_group
            bases, kernels = (
                self.values(base, (2, 2, size)),
                self.values(kernel, (4 * n_groups, size)),
            )
            for (side, tap), rows in zip(
                product(range(2), range(2)), kernels.reshape(4, n_groups, size), strict=True
            ):
                weights[f"{stem}.base_{side}_{tap}.weight"] = bases[side, tap]
                weights[f"{stem}.kernel_{side}_{tap}.weight"] = rows
            others |= {base, kernel}
        others |= {f"{_SELECTOR}{name}" for name in _OF_SELECTOR}
        kept = {name: shape for name, shape in kept.items() if name not in weights}
        return weights | self.own_weights(kept, _NAMES, _OF_MODEL | others)

    @property
    def is_spark(self) -> bool:
        """Whether it is one of DSpark."""
        return any("DSpark" in name for name in self.fields.texts("architectures"))

    @property
    def is_second(self) -> bool:
        """Whether it is one of DFlash 2."""
        return "DFlash2DraftModel" in self.fields.texts("architectures")

    def _second(self, config: ModelConfig) -> ModelConfig:
        """Returns ``config`` with what that of DFlash 2 has beside the others'."""
        if not self.is_second:
            return config

        def count(key: str, least: int, most: int) -> int:
            return self._with(key).integer(key, least=least, most=most)

        count("conv_kernel_size", 2, 2)
        return dataclasses.replace(
            config,
            conv_group=count("conv_group_size", 1, config.hidden_size),
            n_candidates=count("selector_top_k", 1, config.vocab_size),
        )

    def token_pairs(self, config: ModelConfig) -> TokenPairs | None:
        """Returns what each token adds to the logits of the next, of DSpark and DFlash 2."""
        if self.is_second:
            rank = self._with("selector_rank").integer("selector_rank", least=1, most=_MAX_RANK)
            return TokenPairs(
                self.values(f"{_SELECTOR}predecessor_codebook", (config.vocab_size, rank)),
                self.values(f"{_SELECTOR}successor_codebook", (config.vocab_size, rank)),
                self.values(f"{_SELECTOR}hidden_projection.weight", (rank, config.hidden_size)),
                config.n_candidates,
            )
        rank = self._with("markov_rank").integer("markov_rank", 0, least=0, most=_MAX_RANK)
        if not rank or not self.is_spark:
            return None
        self._with("markov_head_type").refuse("markov_head_type", "vanilla")
        shape = (config.vocab_size, rank)
        return TokenPairs(self.values(_BEFORE, shape), self.values(_AFTER, shape))

    def rising_ids(self, target: ModelConfig) -> npt.NDArray[np.int64]:
        """Returns all tokens that the model has logits of."""
        return np.arange(target.n_logits)


def read_dflash(folder: Path, fields: Fields) -> DFlashFolder:
    """Returns the drafter of a ``folder`` whose config.json is ``fields``.

    Raises:
        CheckpointError: It is damaged.
        UnsupportedModelError: It computes more than these drafters do.
    """
    stored = read_head_tensors(folder)
    tensors = {name.removeprefix("logit_head."): tensor for name, tensor in stored.items()}
    head = DFlashFolder(folder.resolve().name, fields, tensors)
    if not head.is_spark or _OPTIONS in fields.values:
        options = fields.table(_OPTIONS)
        options.refuse("projector_type", "dspark" if head.is_spark else "dflash")
        known = (head.is_spark and _SPARK_KEYS) or (head.is_second and _SECOND_KEYS) or set()
        options.only(_KEYS | known)
    return head
