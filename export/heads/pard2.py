"""A drafter of PARD 2: a draft model whose rows also read states of the target model.

`target_proj` of the states of the token before, times `pard2_scale`, is added to each embedding.

Source: AMD-AGI/PARD ``pard2_infer.py``.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.safetensors_file import read_tensors
from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.graph import HeadWeight
from edgedec.export.heads.head_folder import EMBEDDING, HeadFolder, read_head_tensors
from edgedec.models.config import ModelConfig
from edgedec.models.draft_heads import INPUT, PARD2, head_shapes
from edgedec.models.errors import CheckpointError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields

_STATES, _HEAD = "warp_model.safetensors", "lm_head.weight"
_LAYERS, _WIDTH, _SCALE = "pard2_target_layers", "pard2_target_dim", "pard2_scale"
_FAMILIES = ("llama", "qwen2", "qwen3")


class Pard2Folder(HeadFolder):
    """A whole draft model. tensors: by their names without `model.`."""

    kind = PARD2

    def layers(self, n_layers: int) -> tuple[int, ...]:
        """Returns how many of the model's ``n_layers`` are before each state that it reads."""
        ids = self.fields.integers(_LAYERS, 1, n_layers - 1)
        if not ids or list(ids) != sorted(set(ids)):
            self.fields.fail(_LAYERS, list(ids), "rising layers")
        return tuple(ids)

    def config(self, target: ModelConfig) -> ModelConfig:
        """Returns the configuration of the head, for a model of the configuration ``target``.

        Raises:
            CheckpointError: It is the head of another model.
        """
        family = self.fields.text("model_type")
        if family not in _FAMILIES:
            self.fields.fail("model_type", family, f"one of {', '.join(_FAMILIES)}")
        config = find_family(family).read_hf(self.fields)
        width = target.hidden_size * len(self.layers(target.n_layers))
        theirs = self.fields.integer(_WIDTH, least=1)
        for key, got, expected in (
            ("vocab_size", config.vocab_size, target.vocab_size), (_WIDTH, theirs, width),
        ):  # fmt: skip
            if got != expected:
                raise CheckpointError(
                    f"{self.name} is a draft head of another model: its {key} is {got}, the "
                    f"model's {expected}"
                )
        self.fields.refuse("pard2_proj_bias", False)
        if not config.drafts_in_one_pass:
            raise CheckpointError(f"{self.name} has no pard_token, the token that masks places")
        return dataclasses.replace(
            config,
            max_positions=min(config.max_positions, target.max_positions),
            is_head_tied=False,
            trimmed_head_size=target.n_logits,
            drafts_in_one_pass=False,
        )

    def weights(self, config: ModelConfig) -> dict[str, HeadWeight]:
        """Returns its weights; an LM head that is the embedding, once more.

        Raises:
            CheckpointError: One is missing, has another shape, or nobody reads it.
        """
        shapes = head_shapes(config, self.fields.integer(_WIDTH, least=1), PARD2)
        head = _HEAD if _HEAD in self.tensors else EMBEDDING
        rows = self.values(head, (config.vocab_size, config.hidden_size))
        kept = {name: shape for name, shape in shapes.items() if name != _HEAD}
        weights = self.own_weights(kept, {INPUT: "target_proj.weight"}, {_HEAD})
        states = weights[INPUT]
        assert isinstance(states, np.ndarray)
        scale = np.float32(self.fields.number(_SCALE, 0.02))
        return weights | {INPUT: states * scale, _HEAD: rows[: config.n_logits]}

    def rising_ids(self, target: ModelConfig) -> npt.NDArray[np.int64]:
        """Returns all tokens that the model has logits of."""
        return np.arange(target.n_logits)

    def check_tokens(self, parent: BundleWeights, target: ModelConfig) -> None:
        """Does nothing: its embeddings are its own."""


def read_pard2(folder: Path, fields: Fields) -> Pard2Folder:
    """Returns the drafter of a ``folder`` whose config.json is ``fields``.

    Raises:
        CheckpointError: It is damaged, or its matrix for states is in a pickle.
    """
    states = folder / _STATES
    if not states.exists():
        raise CheckpointError(
            f"{folder.resolve().name} has no {_STATES}: convert warp_model.bin with "
            "safetensors.torch.save_file, or export with --draft, which drafts from the text alone"
        )
    tensors = read_head_tensors(folder, but=_STATES)
    named = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    return Pard2Folder(folder.resolve().name, fields, named | dict(read_tensors(states)))
