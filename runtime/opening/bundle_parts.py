"""What an engine takes from a bundle besides its models."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.fields import shown
from edgedec.models.manifest import EDITS_KEY, TUNED_KEY, BundleManifest
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.methods.method_parts import PLAIN
from edgedec.runtime.methods.methods import identity_of
from edgedec.runtime.text.prompt import PromptEncoder, Source
from edgedec.runtime.text.tokenizer import Tokenizer
from edgedec.system.machine import architecture
from edgedec.system.processors import processors

if TYPE_CHECKING:
    from edgedec.runtime.text.chat_template import BrokenTemplate, ChatTemplate

TEMPLATE_NAME = "chat_template.jinja"
GENERATION_CONFIG_NAME = "generation_config.json"


def prompt_encoder(folder: Path, manifest: BundleManifest, tokenizer: Tokenizer) -> PromptEncoder:
    """Returns what turns prompts into the ids that the bundle's model expects."""
    template: ChatTemplate | BrokenTemplate | None = None
    if TEMPLATE_NAME in manifest.files:
        from edgedec.runtime.text.chat_template import BrokenTemplate, ChatTemplate

        source = _read_text(folder / TEMPLATE_NAME)
        try:
            template = ChatTemplate(source, manifest.template_variables)
        except SessionError as error:  # plain text needs none
            template = BrokenTemplate(f"{folder / TEMPLATE_NAME}: {error}")
    context, facts = manifest.target.context, manifest.source
    read = None if facts is None else Source(facts, manifest.target.config.vocab_size)
    return PromptEncoder(tokenizer, template, manifest.opening_token_ids, context, read)


def default_method(manifest: BundleManifest) -> str:
    """Returns the decoding method of requests that name none."""
    method = manifest.defaults.get("method", PLAIN)
    if not isinstance(method, str):
        raise BundleError(f"manifest.defaults.method is {shown(method)}, expected a method's name")
    return method


def tuned(manifest: BundleManifest) -> Mapping[str, Any] | None:
    """Returns what `edgedec tune` found, if it was run."""
    policies = manifest.defaults.get(TUNED_KEY)
    if policies is not None and not isinstance(policies, Mapping):
        raise BundleError(
            f"manifest.defaults.{TUNED_KEY} is {shown(policies)}, expected a table: run "
            "`edgedec tune` on the bundle again"
        )
    return policies


def edit_bounds(manifest: BundleManifest) -> dict[str, float]:
    """Returns how likely edits have to be before they are shown, by format, where calibrated."""
    formats = manifest.defaults.get(EDITS_KEY, {})
    try:
        bounds = {name: float(entry["min_probability"]) for name, entry in formats.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        bounds = {"": -1.0}
    if not all(0 <= bound <= 1 for bound in bounds.values()):
        raise BundleError(
            f"manifest.defaults.{EDITS_KEY} is {shown(formats)}, expected a min_probability from 0 "
            "to 1 for each format: run `edgedec bench --edits --calibrate` on the bundle again"
        )
    return bounds


def identity(manifest: BundleManifest, threads: int, providers: tuple[str, ...]) -> str:
    """Returns a name of models, machine, kernels, threads and ``providers``: costs depend on them.

    Kernels are known by when they were built.
    """
    from edgedec.kernels import cpu, library

    weights = sorted((path, entry.sha256) for path, entry in manifest.files.items())
    built: tuple[object, ...] = ()
    if library.has_library():
        built = cpu.active_isa(), library.library_path().stat().st_mtime_ns
    machine = architecture(), platform.node(), processors()
    return identity_of(weights, threads, *built, *machine, providers[:1])


def defaults(folder: Path, manifest: BundleManifest) -> GenerationConfig:
    """Returns the request that the bundle recommends."""
    if GENERATION_CONFIG_NAME not in manifest.files:
        return GenerationConfig()
    path = folder / GENERATION_CONFIG_NAME
    try:
        fields: Any = json.loads(_read_text(path))
        return GenerationConfig.from_bundle(fields if isinstance(fields, dict) else {})
    except (ValueError, RecursionError, ConfigError) as error:
        raise BundleError(f"{path}: {error}; mend it or export the model again") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BundleError(f"cannot read {path}: {error}; copy the bundle again") from None
