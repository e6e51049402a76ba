"""`edgedec.export`: from a model file to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edgedec.export import pipeline
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.runtime.backends.trust import libraries, trust
from edgedec.runtime.config.checks import checked_path, refuse_unknown
from edgedec.runtime.sequences.prefill import Progress


def export(
    source: str | Path,
    destination: str | Path,
    *,
    draft: str | Path | DraftModelConfig | None = None,
    force: bool = False,
    on_progress: Progress | None = None,
    **settings: Any,
) -> Path:
    """Writes a bundle and returns its path.

    Args:
        source: A GGUF file, a Hugging Face directory, a hub id or a name of the catalogue.
        destination: The bundle's folder.
        draft: A smaller model that drafts for ``source``.
        force: Replace a bundle that is there, at the end and in one step.
        on_progress: Called with (phase, steps done, steps in all).
        settings: Other fields of `ExportConfig`, such as ``quantization="int4"``,
            ``context=4096`` or ``device_target="openvino"``.

    Raises:
        ConfigError: A setting is unknown or does not fit the others, or ``destination`` exists.
        CheckpointError: The model's files are broken or incomplete.
        UnsupportedModelError: edgedec has no recipe for this kind of model.
    """
    if isinstance(draft, str | Path):
        draft = DraftModelConfig(str(draft))
    refuse_unknown(ExportConfig, settings)
    config = ExportConfig(
        source=str(source),
        destination=checked_path("the bundle", destination),
        draft=draft,
        is_overwrite_allowed=force,
        **settings,
    )
    done = pipeline.export(config, on_progress)
    trust(libraries(done.bundle, done.manifest))
    return done.bundle
