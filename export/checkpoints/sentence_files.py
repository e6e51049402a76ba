"""What sentence-transformers keeps beside a model: pooling, dense matrices, prompts.

Source: sentence-transformers ``SentenceTransformer.py``, ``models/Pooling.py``, ``models/Dense.py``
and ``models/Transformer.py`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedec.export.checkpoints.json_files import read_fields, read_json
from edgedec.export.checkpoints.safetensors_file import read_tensors
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.fields import Fields, shown
from edgedec.models.pooling import (
    DenseActivation,
    DenseLayer,
    DenseShape,
    EmbeddingConfig,
    Float32,
    Pooling,
)
from edgedec.models.quant import PlainTensor

MODULES = "modules.json"
SENTENCE_FILES = (
    MODULES,
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "*_Pooling/config.json",
    "*_Dense/config.json",
    "*_Dense/model.safetensors",
)
"""Files that `read_sentence_files` reads."""

_POOLINGS: Mapping[str, Pooling] = {
    "cls_token": "cls", "mean_tokens": "mean", "lasttoken": "last",
    "cls": "cls", "mean": "mean",
}  # fmt: skip
"""Theirs, as flags ``pooling_mode_...`` and as the text ``pooling_mode``."""
_MODE = "pooling_mode"
_OTHER_MODES = ("max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens")
_ACTIVATIONS: Mapping[str, DenseActivation] = {
    "Identity": "identity", "Tanh": "tanh", "ReLU": "relu",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class PublishedEmbedding:
    """What a publisher states of texts as vectors.

    config: without the tokens that texts end with. max_tokens: of a text, None where no file says.
    """

    config: EmbeddingConfig
    dense: tuple[DenseLayer, ...] = ()
    max_tokens: int | None = None


def read_sentence_files(folder: Path) -> PublishedEmbedding | None:
    """Returns what the files of sentence-transformers say; None where there are none.

    Raises:
        CheckpointError: A file is missing or broken.
        UnsupportedModelError: A module does what edgedec does not.
    """
    if not (folder / MODULES).is_file():
        return None
    pooling: Pooling | None = None
    dense: list[DenseLayer] = []
    is_normed = False
    for kind, path in _modules(folder):
        if kind == "Transformer" and pooling is None and not path:
            continue
        if kind == "Pooling" and pooling is None:
            pooling = _read_pooling(read_fields(folder, f"{path}/config.json"))
        elif kind == "Dense" and pooling is not None and not is_normed:
            dense.append(_read_dense(folder, path))
        elif kind == "Normalize" and pooling is not None:
            is_normed = True
        else:
            raise UnsupportedModelError(
                f"{MODULES}: the module {shown(path or kind)} is {shown(kind)} in its place, "
                "expected Transformer, Pooling, any Dense, then Normalize"
            )
    if pooling is None:
        raise CheckpointError(f"{MODULES}: names no Pooling, expected one; fetch it again")
    settings = read_fields(folder, "sentence_bert_config.json", is_optional=True)
    settings.refuse("do_lower_case", False)
    config = _with_prompts(folder, pooling, tuple(layer.shape for layer in dense))
    longest = settings.optional("max_seq_length", lambda key: settings.integer(key, least=1))
    return PublishedEmbedding(config, tuple(dense), longest)


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Returns kind and path of each module."""
    modules = read_json(folder / MODULES)
    if not isinstance(modules, list):
        raise CheckpointError(f"{MODULES}: is not a list; fetch it again")
    entries = []
    for i, values in enumerate(modules):
        module = Fields(values, f"{MODULES} [{i}]", CheckpointError)
        path = module.text("path", "")
        if Path(path).name != path:
            module.fail("path", path, "a folder beside the file")
        entries.append((module.text("type").rpartition(".")[2], path))
    return entries


def _read_pooling(fields: Fields) -> Pooling:
    fields.refuse("include_prompt", True)
    if isinstance(mode := fields.get(_MODE), str):
        modes = [mode]
    else:
        names = (*_POOLINGS, *_OTHER_MODES)
        modes = [name for name in names if fields.flag(f"{_MODE}_{name}", False)]
    if len(modes) != 1 or modes[0] not in _POOLINGS:
        raise UnsupportedModelError(
            f"{fields.origin}: {_MODE} is {' and '.join(modes) or 'missing'}, expected one of "
            "cls_token, mean_tokens and lasttoken"
        )
    return _POOLINGS[modes[0]]


def _with_prompts(folder: Path, pooling: Pooling, dense: tuple[DenseShape, ...]) -> EmbeddingConfig:
    settings = read_fields(folder, "config_sentence_transformers.json", is_optional=True)
    prompts = settings.table("prompts", {})
    default = settings.optional("default_prompt_name", settings.text)
    if default is not None and default not in prompts.values:
        settings.fail("default_prompt_name", default, "a name of one of the prompts")
    texts = {name: prompts.text(name) for name in prompts.values}
    return EmbeddingConfig(pooling, (), texts, default, dense)


def _read_dense(folder: Path, path: str) -> DenseLayer:
    fields = read_fields(folder, f"{path}/config.json")
    name = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    activation = _ACTIVATIONS.get(name.rpartition(".")[2])
    if activation is None:
        raise UnsupportedModelError(
            f"{path}/config.json: activation_function is {shown(name)}, expected one of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    for key in ("module_input_name", "module_output_name"):
        fields.refuse(key, "sentence_embedding")
    has_bias = fields.flag("bias", True)
    shape = DenseShape(
        fields.integer("in_features", least=1),
        fields.integer("out_features", least=1),
        has_bias,
        activation,
    )
    return _with_weights(folder / path / "model.safetensors", shape)


def _with_weights(path: Path, shape: DenseShape) -> DenseLayer:
    name = f"{path.parent.name}/{path.name}"
    if not path.is_file():
        raise CheckpointError(
            f"{name} is missing; if its weights are in pytorch_model.bin, convert it with "
            "sentence-transformers: SentenceTransformer(FOLDER).save(NEW)"
        )
    stored = read_tensors(path)
    shapes: dict[str, tuple[int, ...]] = {"linear.weight": (shape.n_out, shape.n_in)}
    if shape.has_bias:
        shapes["linear.bias"] = (shape.n_out,)
    if set(stored) != set(shapes):
        raise CheckpointError(
            f"{name}: holds {', '.join(sorted(stored)) or 'nothing'}, expected "
            f"{', '.join(sorted(shapes))}"
        )
    weights: dict[str, Float32] = {}
    for key, expected in shapes.items():
        if stored[key].shape != expected:
            raise CheckpointError(
                f"{name}: {key} has shape {list(stored[key].shape)}, expected {list(expected)} "
                "from the config.json beside it"
            )
        plain = PlainTensor(stored[key].format, stored[key].values())
        weights[key] = np.array(plain.dequantize(), np.float32)
        if not np.isfinite(weights[key]).all():
            raise CheckpointError(f"{name}: {key} holds infinite or undefined values")
    bias = weights.get("linear.bias", np.zeros(shape.n_out, np.float32))
    return DenseLayer(shape, weights["linear.weight"], bias)
