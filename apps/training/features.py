"""Reads texts through a bundle's own kernels, for what draft heads are trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from edgedec.apps.training.corpus import Corpus
from edgedec.export.heads.feature_file import FeatureFile, TextFeatures
from edgedec.models.draft_heads import normed
from edgedec.runtime.sessions.passes import Pass
from edgedec.runtime.sessions.prefill import PREFILL_CHUNK
from edgedec.runtime.sessions.sequence import TokenSequence
from edgedec.runtime.sessions.token_tree import TokenTree

WINDOW = 512
"""Tokens that are read at once, as one text."""

_SHORTEST = 16


def read_features(
    sequence: TokenSequence,
    texts: Corpus,
    encode: Callable[[str], list[int]],
    layers: Sequence[int],
    epsilon: float,
    n_tokens: int,
    file: FeatureFile,
    report: Callable[[str, int, int], None],
    is_over: Callable[[], bool],
) -> None:
    """Adds texts to ``file`` until it has ``n_tokens``, or ``is_over``; goes on where it ends.

    Raises:
        OSError: The disk is full.
    """
    windows = (w for w in texts.windows(encode) if len(w[1]) >= _SHORTEST)
    for kind, tokens in islice(windows, len(file.lengths), None):
        report("read", min(file.n_tokens, n_tokens), n_tokens)
        if file.n_tokens >= n_tokens or is_over():
            return
        file.add(_read(sequence, kind, tokens, layers, epsilon))


def _read(
    sequence: TokenSequence, kind: str, tokens: list[int], layers: Sequence[int], epsilon: float
) -> TextFeatures:
    sequence.truncate(0)
    hidden, ids, probs = [], [], []
    for start in range(0, len(tokens), PREFILL_CHUNK):
        chunk = TokenTree.chain(tokens[start : start + PREFILL_CHUNK])
        rows = sequence.run(
            Pass(sequence, chunk, range(len(chunk)), tuple(layers), with_logits=False)
        )
        sequence.commit(range(len(chunk)))
        normal = [normed(rows.hidden[layer], epsilon) for layer in layers]
        stats = rows.stats
        hidden.append(np.concatenate(normal, axis=1).astype(np.float16))
        ids.append(stats.top_ids.astype(np.int32))
        probs.append(np.exp(stats.top_logits - stats.log_sum_exp[:, None]).astype(np.float16))
    parts = (np.concatenate(part) for part in (hidden, ids, probs))
    return TextFeatures(kind, np.array(tokens, np.int32), *parts)
