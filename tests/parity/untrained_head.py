"""A draft head of random weights, for tests that care that there is one and not what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.export.heads.head_file import HeadFacts, model_digest, write_head_file
from edgedec.models.draft_heads import HYDRA, head_config, head_shapes
from edgedec.models.manifest import read_manifest


def write_untrained_head(path: Path, bundle: Path) -> None:
    """Writes two `hydra` heads for the model of ``bundle``; they name every other token."""
    target = read_manifest(bundle).target
    config, ids = target.config, np.arange(0, min(target.config.vocab_size, 4096), 2)
    shapes = head_shapes(head_config(config, len(ids), HYDRA, 2), config.hidden_size, HYDRA)
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    digest = model_digest(BundleWeights(bundle, target), config)
    facts = HeadFacts(HYDRA, digest, (config.n_layers,), 2, "int8", "none", 9, (0.5, 0.5))
    write_head_file(path, facts, weights, ids)
