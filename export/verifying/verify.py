"""The written graph against the NumPy reference, on a few tokens.

Three questions: are the logits of a chain right; does a token fed after a prefix get the logits it
has in the chain; do the rows of a tree equal those of their chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgedec.models.config import ModelConfig
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.reference import ReferenceModel
from edgedec.models.weights import WeightSource

N_TOKENS = 8
TREE_PREFIX = 3
"""Tokens committed before the tree pass; the rest of the chain is one branch of the tree."""

MAX_RELATIVE_ERROR = 0.3
"""Mean error of logits over their spread. 8-bit activations cost some hundredths; a graph that
computes something else comes to one."""

MIN_SPREAD = 1e-6
"""Standard deviation of logits under which no token is likelier than another."""

Logits = npt.NDArray[np.float32]


class GraphRunner(Protocol):
    """A graph and its KV cache."""

    def compute_logits(
        self, tokens: Sequence[int], parents: Sequence[int], n_past: int = 0
    ) -> Logits:
        """Returns the logits [T, V] of a pass after the first ``n_past`` cached tokens."""


def verify_logits(
    runner: GraphRunner, source: WeightSource, runs_trees: bool = True, has_gap: bool = False
) -> dict[str, Any]:
    """Returns how far the logits of a graph are from the reference on the same weights.

    Returns:
        ``n_tokens``; ``max_abs_error`` and ``mean_abs_error`` of logits; ``logit_std`` of the
        reference, to judge them by; ``top1_agreement`` in [0, 1]; ``kl_nats``, the mean over
        tokens of KL(reference || graph); ``tree_max_abs_error``, rows of a tree against the same
        rows as a chain, if it ``runs_trees``; ``largest_kv``, the largest key or value of the
        reference; ``row_gap``, the largest difference of a logit
        between rows alone and together, if it ``has_gap``. Of an embedding model ``min_cosine`` of
        hidden states stands in place of what concerns logits.
    """
    tokens = verification_tokens(source.config)
    reference = ReferenceModel(source)
    if source.config.encoder is not None:
        reference.read_source(verification_source(source.config))
    expected = reference.forward(tokens).logits.astype(np.float32)
    logits = runner.compute_logits(tokens, range(-1, N_TOKENS - 1))
    report = compare_logits(logits, expected)
    if source.config.is_embedder:
        report = _of_hidden_states(report, logits, expected)
    report["largest_kv"] = reference.largest_kv()
    if runs_trees:
        report["tree_max_abs_error"] = _tree_error(runner, tokens, logits)
    if has_gap:
        alone = [runner.compute_logits([token], [-1], n_past=i) for i, token in enumerate(tokens)]
        gap = float(np.abs(np.concatenate(alone) - logits).max())
        report["row_gap"] = max(gap, report.get("tree_max_abs_error", 0.0))
    return report


def verification_tokens(config: ModelConfig) -> list[int]:
    """Returns the tokens that graphs are verified on."""
    return [(7919 * i + 101) % config.vocab_size for i in range(N_TOKENS)]


def verification_source(config: ModelConfig) -> list[int]:
    """Returns the ids of the source that a ``runner`` of `verify_logits` has read."""
    return verification_tokens(config)[::-1]


def check_error(report: dict[str, Any], place: str, hint: str) -> None:
    """Raises an UnsupportedModelError if the logits of ``report`` are far from what they should be.

    Args:
        found: as `compare_logits` returns it.
        place: whose logits are ``{}`` from what; the error takes the place of the braces.
        hint: why that may be, or what to do.
    """
    error, spread = report["mean_abs_error"], report["logit_std"]
    if not error <= MAX_RELATIVE_ERROR * spread:  # also true of NaN
        raise UnsupportedModelError(
            f"{place.format(f'{error:.3g}')}, expected at most {MAX_RELATIVE_ERROR} of their "
            f"spread {spread:.3g}: {hint}; nothing was written"
        )


def check_spread(report: dict[str, Any], name: str) -> None:
    """Raises a CheckpointError if the reference finds all tokens equally likely.

    Args:
        found: as `compare_logits` returns it.
        name: the model's name.
    """
    if report["logit_std"] < MIN_SPREAD:
        raise CheckpointError(
            f"all logits of {name} are equal (their spread is {report['logit_std']:.3g}), so it "
            "writes nothing but the first token: its weights are broken or the download was "
            "interrupted: fetch it again; nothing was written"
        )


def compare_logits(logits: Logits, expected: Logits) -> dict[str, Any]:
    """Returns error measures of ``logits`` [T, V]."""
    error = np.abs(logits - expected)
    log_p, log_q = log_softmax(expected), log_softmax(logits)
    kl_nats = np.sum(np.exp(log_p) * (log_p - log_q), axis=-1)
    return {
        "n_tokens": len(logits),
        "max_abs_error": float(error.max()),
        "mean_abs_error": float(error.mean()),
        "logit_std": float(expected.std()),
        "top1_agreement": float(np.mean(logits.argmax(-1) == expected.argmax(-1))),
        "kl_nats": float(kl_nats.mean()),
    }


def _of_hidden_states(report: dict[str, Any], rows: Logits, expected: Logits) -> dict[str, Any]:
    """Returns ``report`` for rows that are no logits: with the lowest cosine, ``min_cosine``."""
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(expected, axis=1)
    cosines = np.sum(rows * expected, axis=1) / np.maximum(lengths, MIN_SPREAD)
    kept = {key: report[key] for key in report if key not in ("kl_nats", "top1_agreement")}
    return {**kept, "min_cosine": float(cosines.min())}


def _tree_error(runner: GraphRunner, tokens: Sequence[int], chain_logits: Logits) -> float:
    """Feeds the end of the chain as a tree with a decoy sibling before each of its tokens."""
    nodes, parents, last = [], [], -1
    for token in tokens[TREE_PREFIX:]:
        nodes += [tokens[0], token]
        parents += [last, last]
        last = len(nodes) - 1
    logits = runner.compute_logits(nodes, parents, n_past=TREE_PREFIX)
    return float(np.abs(logits[1::2] - chain_logits[TREE_PREFIX:]).max())


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    """Returns the log-probabilities of each row of logits [T, V]."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    log_probs: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return log_probs
