"""Models without a recipe: which may go through optimum-onnx, and what such a bundle states."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from edgedec.export.checkpoints.hub import HubName, fetch
from edgedec.export.checkpoints.safetensors_dir import (
    HuggingFaceTexts,
    read_model_type,
    refuse_images,
)
from edgedec.export.config import ExportConfig
from edgedec.export.phases.model_export import ModelExport
from edgedec.export.phases.optimum_fallback import check_optimum, export_with_optimum
from edgedec.models.errors import ConfigError, UnsupportedModelError
from edgedec.models.families import is_known
from edgedec.models.model_entry import ModelEntry


@dataclass(kw_only=True)
class OptimumModel(ModelExport):
    """A Hugging Face directory whose family has no recipe, on its way into a bundle."""

    published: RecipelessModel


class RecipelessModel(HuggingFaceTexts):
    """A Hugging Face directory of any family."""

    def __init__(self, folder: Path, family: str, name: str | None) -> None:
        """Reads config.json.

        Raises:
            CheckpointError: it is missing or broken.
            UnsupportedModelError: the text model is only a part of it, or it has an encoder.
        """
        super().__init__(folder, name)
        refuse_images(self._fields)
        if self._fields.get("is_encoder_decoder"):
            raise UnsupportedModelError(
                f"model family {family} has an encoder and a decoder, only decoders are supported"
            )
        self.folder = folder
        self.family = family

    @property
    def _vocab_size(self) -> int:
        """Where the file does not say, only transformers knows, and no id is left out."""
        return self._fields.integer("vocab_size", sys.maxsize)


def find_recipeless(config: ExportConfig) -> RecipelessModel | None:
    """Returns the model ``config`` names, if it is a directory of a family without recipe.

    Raises:
        ConfigError: The export asks for what such a graph cannot give.
        UnsupportedModelError: optimum-onnx is not installed.
    """
    folder = Path(config.source)
    name: str | None = None
    if not folder.exists() and "/" in config.source:  # opened before, so it is a hub id
        hub_name = HubName.parse(config.source)
        if hub_name is None or hub_name.file:
            return None
        folder, name = fetch(hub_name).source, hub_name.hub_id.split("/")[1]
    if not folder.is_dir() or is_known(family := read_model_type(folder)):
        return None
    model = RecipelessModel(folder, family, name)
    check_optimum(family)
    if config.lora:
        raise ConfigError(f"model family {family} has no recipe: merge the LoRA adapter beforehand")
    is_refined = config.quantization != "keep" or config.kv_format is not None
    if is_refined or config.hidden_layers or config.dump_passes:
        raise ConfigError(
            f"model family {family} has no recipe and goes through optimum, whose graph keeps "
            "float32 weights, its own KV cache and no hidden states: leave out --quant, "
            "--kv-cache, --hidden-layers and --dump-passes"
        )
    return model


def emit_with_optimum(model: OptimumModel) -> None:
    """The whole graph, with float32 weights, made and verified by optimum and transformers."""
    published = model.published
    written = export_with_optimum(published.folder, published.family, model.folder)
    longest = written.config.max_positions
    if (model.config.context or 0) > longest:
        raise ConfigError(
            f"context {model.config.context} is more than the {longest} positions "
            f"{published.name} was trained for; use a smaller --context"
        )
    model.verification = written.verification
    model.entry = ModelEntry(
        kind=model.kind,
        graph=model.listed(written.graph),
        weights=tuple(model.listed(name) for name in written.weights),
        contract=written.contract,
        config=written.config,
        context=model.config.context or longest,
        tensor_formats={},
    )
