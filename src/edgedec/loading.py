"""`edgedec.load`: from what a user names to an engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgedec.models.manifest import MANIFEST_NAME
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load as load_bundle
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.prefill import Progress


def load(
    model: str | Path,
    options: EngineOptions | None = None,
    on_progress: Progress | None = None,
) -> Engine:
    """Returns an engine over ``model``.

    Args:
        model: A bundle; or a GGUF file, a Hugging Face directory or a model's name. Those are
            exported on first use, into the user's cache.
        options: How it is loaded.
        on_progress: Called with (phase, steps done, steps in all) while it exports and loads.

    Raises:
        ConfigError: Nothing is called so, or the options do not fit the bundle.
        BundleError: The bundle is broken, foreign or unsafe.
        CheckpointError: The model cannot be exported.
    """
    if isinstance(options, EngineOptions) and isinstance(options.draft, str | Path):
        options = replace(options, draft=_bundle(options.draft, on_progress))
    return load_bundle(_bundle(model, on_progress), options, on_progress)


def _bundle(model: str | Path, on_progress: Progress | None) -> str | Path:
    """Returns the bundle of ``model``; what is no path or name is left to whoever opens it."""
    is_named = isinstance(model, str | Path) and "\0" not in str(model) and str(model)
    if not is_named or (Path(model) / MANIFEST_NAME).is_file():
        return model
    # An exporter is imported for those alone who name something else than a bundle.
    from contextlib import nullcontext

    from edgedec.export.named_models import bundle_of

    report = on_progress or (lambda phase, done, total: None)
    return bundle_of(model, lambda text, bundle: nullcontext(report))
