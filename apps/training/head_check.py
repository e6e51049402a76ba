"""Measures a head as its bundle holds it, quantised, on texts that it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edgedec.export.heads.feature_file import TextFeatures
from edgedec.models.draft_heads import DRAFT_HEADS, LIGHT_HEADS, HeadEntry, light_gates
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import BundleManifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.prefill import PREFILL_CHUNK
from edgedec.runtime.sessions.rows import Float32
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree


def share_found(
    bundle: Path, manifest: BundleManifest, texts: Sequence[TextFeatures], threads: int
) -> float:
    """Returns the share of the model's own next tokens in ``texts`` that the bundle's head finds.

    Raises:
        BundleError: The head is broken.
    """
    assert manifest.head is not None
    head = manifest.head.head
    assert head.head_ids is not None
    ids = read_head_ids(bundle / head.head_ids, head.config.vocab_size)
    model = open_model(bundle, head, threads)
    try:
        sequence = TokenSequence(model, head.context)
        found = [_found(sequence, text, manifest.head) for text in texts]
        n_right = sum(
            int((ids[f] == t.top_ids[:, 0]).sum()) for f, t in zip(found, texts, strict=True)
        )
        return n_right / sum(map(len, found))
    finally:
        release_model(model)


def _found(
    sequence: TokenSequence, text: TextFeatures, head: HeadEntry
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Returns the rows of the head's likeliest tokens after each token of ``text``."""
    sequence.truncate(0)
    tokens, found = text.tokens.tolist(), []
    features = _features(text, head)
    is_light = head.kind in LIGHT_HEADS
    gates = light_gates(head.head.config.n_layers, 0) if is_light else None
    for start in range(0, len(tokens), PREFILL_CHUNK):
        part = slice(start, start + PREFILL_CHUNK)
        chunk = TokenTree.chain(tokens[part])
        wanted = Pass(
            sequence,
            chunk,
            range(len(chunk)),
            with_logits=False,
            layer_gates=gates,
            features=features[part],
        )
        rows = sequence.run(wanted)
        if not is_light:  # which keep nothing
            sequence.commit(range(len(chunk)))
        found.append(rows.stats.argmax.copy())
    return np.concatenate(found)


def _features(text: TextFeatures, head: HeadEntry) -> Float32:
    """Returns what each row reads beside its token."""
    n, width, known = len(text.tokens), head.head.contract.can.features, text.hidden
    if head.kind in LIGHT_HEADS:
        known = known[:, -head.head.config.hidden_size :]
    features = np.zeros((n, width), np.float32)
    shift = int(head.kind in DRAFT_HEADS)  # whose features a row reads
    features[shift:, : known.shape[1]] = known[: n - shift]
    return features
