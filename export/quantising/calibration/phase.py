"""The phase of an export that quantises on a text."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from edgedec.export.checkpoints.checkpoint import Checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.phases.recipe_model import RecipeModel
from edgedec.export.quantising.calibration.calibrate import Calibration, Finished
from edgedec.export.quantising.calibration.mixed import choose_formats, stored_bits
from edgedec.export.quantising.calibration.scaling import Scaled
from edgedec.export.quantising.calibration.texts import CalibrationTexts, read_texts
from edgedec.export.quantising.quantise import MIXED, Quantized
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.families import matrices


def calibrate(model: RecipeModel) -> Quantized:
    """Returns the model quantised on the text of its export, and notes what that cost.

    Raises:
        ConfigError: the text is too short, or the model has no float matrices.
        UnsupportedModelError: its layers have inputs of their own.
    """
    options = model.config
    assert options.calibrate is not None
    if model.source.config.layer_input_size:
        raise UnsupportedModelError(
            f"--calibrate: {model.source.name} has inputs of layers, which cannot be quantised on "
            "a text yet: export without it"
        )
    texts = read_texts(options.calibrate, model.published)
    folder, formats = unfinished_folder(options), None
    if options.quantization == MIXED:
        assert options.target_bits is not None
        measured = Finished(folder, _key(model, model.source, texts))
        formats = choose_formats(model.source, texts, options.target_bits, measured, model.report)
    scaled = Scaled(model.source)
    quantised = Quantized(scaled, model.quantization, scratch=model.bundle_folder, formats=formats)
    finished = Finished(folder, _key(model, quantised, texts))
    scores = Calibration(scaled, quantised, finished, model.report).compute_scores(texts)
    model.calibration = {
        **dataclasses.asdict(scores),
        "n_calibration_tokens": texts.n_tokens,
        "bits_per_weight": round(_bits(quantised), 3),
    }
    return quantised


def unfinished_folder(config: ExportConfig) -> Path:
    """Returns where an interrupted calibration leaves the matrices that are finished."""
    destination = config.destination.absolute()
    return destination.with_name(f".{destination.name}.calibration")


def forget_unfinished(config: ExportConfig) -> None:
    """Removes what interrupted calibrations of this export left."""
    if config.calibrate is not None:
        shutil.rmtree(unfinished_folder(config), ignore_errors=True)


def _key(model: RecipeModel, weights: Checkpoint, texts: CalibrationTexts) -> str:
    """Returns what two calibrations have in common if one can go on where the other ended."""
    formats = {name: weights.format(name).name for name in matrices(weights.config)}
    ids = [text.tolist() for text in (*texts.texts, texts.held_out)]
    return repr((model.config.source, model.source.config, model.config.lora, formats, ids))


def _bits(quantised: Quantized) -> float:
    sizes = {name: n * k for name, (n, k) in matrices(quantised.config).items()}
    formats = {name: quantised.format(name) for name in sizes}
    total = sum(
        sizes[name] * (fmt.bits if fmt.is_float else stored_bits(fmt))
        for name, fmt in formats.items()
    )
    return total / sum(sizes.values())
