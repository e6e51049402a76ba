"""Remarks about a draft model that hardly suits: one as large as the target, or of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edgedec.apps.console.terminal import bytes_text
from edgedec.models.manifest import TOKENIZER_NAME, BundleManifest, read_manifest

_MAX_SHARE = 0.67
"""Size of a draft model over that of the target from which on it hardly pays."""


def draft_problem(bundle: Path, draft: Path | None) -> str:
    """Returns why ``draft`` hardly pays as a draft model of ``bundle``; empty if nothing is odd.

    Raises:
        BundleError: One of the bundles is broken.
    """
    if draft is None:
        return ""
    target, other = (read_manifest(path, are_hashes_checked=False) for path in (bundle, draft))
    sizes = _weight_bytes(target), _weight_bytes(other)
    problems = []
    if sizes[1] > _MAX_SHARE * sizes[0]:
        problems.append(
            f"has {bytes_text(sizes[1])} of weights, and the target model {bytes_text(sizes[0])}"
        )
    if _tokenizer(target) != _tokenizer(other):
        problems.append("has another tokenizer, so only tokens that both know are drafted")
    if not problems:
        return ""
    return f"the draft model {draft} {' and '.join(problems)}: it may lose time"


def measured_saving(lines: Sequence[str]) -> str:
    """Returns the line of an explanation that says what drafts saved or cost; empty if none."""
    return next((line for line in lines if line.startswith("plain decoding would have")), "")


def _weight_bytes(manifest: BundleManifest) -> int:
    weights = manifest.target.weights
    return sum(manifest.files[name].n_bytes for name in weights if name in manifest.files)


def _tokenizer(manifest: BundleManifest) -> str:
    facts = manifest.files.get(TOKENIZER_NAME)
    return facts.sha256 if facts else ""
