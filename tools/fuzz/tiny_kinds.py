"""Tiny bundles with everything that can stand beside a model: exits, heads, a draft model, maps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from tiny import make_bundle, write_gguf, write_mtp_gguf

from edgedec.export.config import DraftModelConfig, ExitConfig, ExportConfig
from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.head_file import HeadFacts, model_digest, write_head_file
from edgedec.export.pipeline import export
from edgedec.models.draft_heads import (
    EAGLE,
    LIGHT_HEADS,
    MTP_LAYER,
    feature_width,
    head_config,
    head_shapes,
)
from edgedec.models.manifest import read_manifest

N_LOGITS = 64
N_LIGHT = 2
N_TEXTS = 24


def with_exits(folder: Path) -> Path:
    """A model that drafts with its first layer."""
    source, bundle = write_gguf(folder / "tiny.gguf"), folder / "exits.edgedec"
    export(ExportConfig(str(source), bundle, exit=ExitConfig((1,), N_LOGITS)))
    return bundle


def with_head(folder: Path, kind: str) -> Path:
    """A model with a draft head of random weights."""
    plain = make_bundle(folder)
    manifest, bundle = read_manifest(plain), folder / f"{kind}.edgedec"
    weights, target = BundleWeights(plain, manifest.target), manifest.target.config
    n_heads = N_LIGHT if kind in LIGHT_HEADS else 1
    layers = (2,) if kind in LIGHT_HEADS else (1, 2)
    config = head_config(target, N_LOGITS, kind, n_heads)
    shapes = head_shapes(config, feature_width(target, len(layers), kind, n_heads), kind)
    rng = np.random.default_rng(0)
    values = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in shapes.items()
    }
    facts = HeadFacts(
        kind, model_digest(weights, target), layers, n_heads, "int8", "", 1000, (0.1,) * N_LIGHT
    )
    file = folder / f"{kind}.safetensors"
    write_head_file(file, facts, values, np.arange(N_LOGITS))
    export(ExportConfig(str(folder / "tiny.gguf"), bundle, head=file))
    return bundle


def with_mtp(folder: Path) -> Path:
    """A recurrent model with the layer that its publisher trained for drafting."""
    source, bundle = write_mtp_gguf(folder / "mtp.gguf"), folder / "mtp.edgedec"
    export(ExportConfig(str(source), bundle))
    assert read_manifest(bundle).head is not None
    return bundle


def with_maps(folder: Path, direction: str = "") -> Path:
    """Two models, with maps in a ``direction``, an option of `edgedec train kv`; its usual one."""
    sources = [write_gguf(folder / f"{name}.gguf", seed) for seed, name in enumerate("td")]
    corpus, bundle = folder / "corpus", folder / f"maps{direction}.edgedec"
    draft = DraftModelConfig(str(sources[1]))
    export(ExportConfig(str(sources[0]), bundle, draft=draft, is_overwrite_allowed=True))
    corpus.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(N_TEXTS):
        text = bytes(rng.integers(97, 123, 120).tolist())
        (corpus / f"{number}.txt").write_bytes(text)
    # By itself: threads of a model that ran here would be gone in processes forked from this one.
    program = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]
    options = ["--corpus", corpus, "--threads", "1", *([direction] if direction else [])]
    subprocess.run([*program, "train", "kv", bundle, *options], check=True, capture_output=True)
    return bundle


KINDS: dict[str, Callable[[Path], Path]] = {
    "plain": make_bundle,
    "exit": with_exits,
    **{kind: partial(with_head, kind=kind) for kind in (EAGLE, *LIGHT_HEADS)},
    MTP_LAYER: with_mtp,
    "maps": with_maps,
    "draft": partial(with_maps, direction="--draft"),
}
"""Bundles by what they have, each made in a folder of its own."""


def make_kinds(folder: Path) -> dict[str, Path]:
    """Makes one bundle of each of `KINDS` below ``folder``."""
    made = {}
    for name, make in KINDS.items():
        path = folder / name
        path.mkdir()
        made[name] = make(path)
    return made
