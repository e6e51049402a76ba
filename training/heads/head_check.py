"""Measures what a bundle holds, quantised, on texts that it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec.models.draft_heads import DRAFT_HEADS, LIGHT_HEADS, HeadEntry, light_gates
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import BundleManifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.rows import Float32
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.features.feature_file import TextFeatures

Places = npt.NDArray[np.int64]


def share_found(
    bundle: Path, manifest: BundleManifest, texts: Sequence[TextFeatures], threads: int
) -> float:
    """Returns the share of the model's own next tokens in ``texts`` that the bundle's head finds.

    Raises:
        BundleError: The head is broken.
    """
    head = manifest.head
    assert head is not None
    return _share(bundle, head.head, texts, threads, lambda s, text: _places(s, text, head))


def share_drafted(
    bundle: Path, manifest: BundleManifest, texts: Sequence[TextFeatures], threads: int
) -> float:
    """Returns the share that the bundle's draft model finds.

    Raises:
        BundleError: The draft model is broken.
    """
    assert manifest.draft_name is not None
    return _share(bundle, manifest.models[manifest.draft_name], texts, threads, _drafted)


def _share(
    bundle: Path,
    entry: ModelEntry,
    texts: Sequence[TextFeatures],
    threads: int,
    likeliest: Callable[[TokenSequence, TextFeatures], Places],
) -> float:
    """Returns the share of tokens that are those of the ``likeliest`` rows of a trimmed head.

    likeliest: of the last tokens of a text, or of all.
    """
    assert entry.head_ids is not None
    ids = read_head_ids(bundle / entry.head_ids, entry.config.vocab_size)
    model = open_model(bundle, entry, threads)
    try:
        sequence = TokenSequence(model, entry.context)
        shares = [likeliest(sequence, text) for text in texts]
        n_right = sum(
            int((ids[f] == t.top_ids[-len(f) :, 0]).sum())
            for f, t in zip(shares, texts, strict=True)
        )
        return n_right / sum(map(len, shares))
    finally:
        release_model(model)


def _drafted(sequence: TokenSequence, text: TextFeatures) -> Places:
    """Returns the rows of a draft model's likeliest tokens after each token of ``text``."""
    sequence.truncate(0)
    tokens, drafts = text.tokens.tolist(), []
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = TokenTree.chain(tokens[start : start + PREFILL_CHUNK])
        rows = sequence.run(Pass(sequence, chunk, range(len(chunk)), with_logits=False))
        sequence.commit(range(len(chunk)))
        drafts.append(rows.stats.argmax.copy())
    return np.concatenate(drafts)


def _places(sequence: TokenSequence, text: TextFeatures, head: HeadEntry) -> Places:
    """Returns the rows of the head's likeliest tokens after the last tokens of ``text``."""
    sequence.truncate(0)
    tokens, features_ = text.tokens.tolist(), []
    features = _features(text, head)
    is_light = head.kind in LIGHT_HEADS
    gates = light_gates(head.head.config.n_layers, 0) if is_light else None
    for start in range(0, len(tokens), PREFILL_CHUNK):
        part = slice(start, start + PREFILL_CHUNK)
        chunk = TokenTree.chain(tokens[part])
        pass_ = Pass(
            sequence,
            chunk,
            range(len(chunk)),
            with_logits=False,
            layer_gates=gates,
            features=features[part],
        )
        rows = sequence.run(pass_)
        if not is_light:  # which keep nothing
            sequence.commit(range(len(chunk)))
        features_.append(rows.stats.argmax.copy())
    return np.concatenate(features_)[is_light:]  # no state stands before the first token


def _features(text: TextFeatures, head: HeadEntry) -> Float32:
    """Returns what each row reads beside its token."""
    n, width, known = len(text.tokens), head.head.contract.can.features, text.hidden
    if head.kind in LIGHT_HEADS:
        known = known[:, -head.head.config.hidden_size :]
    features = np.zeros((n, width), np.float32)
    shift = int(head.kind in DRAFT_HEADS)  # whose features a row reads
    features[shift:, : known.shape[1]] = known[: n - shift]
    return features
