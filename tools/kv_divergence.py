"""What a smaller KV cache changes: two bundles of a model read the same text, pass by pass.

python tools/kv_divergence.py float16.edgedec k5v4.edgedec text.txt --tokens 2048
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

import edgedec
from edgedec.runtime.sequences.token_tree import TokenTree

Float64 = npt.NDArray[np.float64]


def log_probabilities(
    bundle: Path, tokens: Sequence[int], n_scored: int, n_rows: int
) -> tuple[Float64, float]:
    """Returns natural log-probabilities after the last ``n_scored`` tokens, and MB of KV cache.

    n_rows: of a pass. Each pass writes its rows to the KV cache and reads the earlier ones there.
    Shape: [n_scored, vocabulary].
    """
    options = edgedec.EngineOptions(context=len(tokens) + 1)
    with edgedec.load(bundle, options) as engine:
        sequence = engine.new_sequence()
        scored = []
        for begin in range(0, len(tokens), n_rows):
            part = tokens[begin : begin + n_rows]
            first = max(0, len(tokens) - n_scored - begin)  # the first row that counts
            rows = range(min(first, len(part)), len(part))
            logits = sequence.forward(TokenTree.chain(part), rows).logits
            sequence.commit(range(len(part)))
            if len(rows):
                scored.append(log_softmax(logits[-len(rows) :].astype(np.float64)))
        return np.concatenate(scored), sequence.nbytes / 1e6


def log_softmax(logits: Float64) -> Float64:
    """Returns natural log-probabilities, row by row. Shape: that of ``logits``."""
    shifted = logits - logits.max(axis=-1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def main() -> None:
    """Reads the command line, and prints a line for each bundle."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exact", type=Path, help="bundle with a float16 KV cache")
    parser.add_argument("smaller", type=Path, nargs="+", help="bundles of the same model")
    parser.add_argument("text", type=Path, help="a text, in UTF-8")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens that are read")
    parser.add_argument("--scored", type=int, default=256, help="of those, the last that count")
    parser.add_argument("--rows", type=int, default=256, help="tokens of a pass")
    options = parser.parse_args()
    with edgedec.load(options.exact) as engine:
        text = options.text.read_text(encoding="utf-8")[: 10 * options.tokens]
        tokens = engine.tokenizer.encode(text)[: options.tokens]
    if len(tokens) < options.tokens:
        parser.error(f"{options.text} has {len(tokens)} tokens, expected {options.tokens}")
    exact, mb = log_probabilities(options.exact, tokens, options.scored, options.rows)
    following = tokens[-options.scored + 1 :]
    print(f"{options.exact.name}: {mb:.1f} MB, perplexity {perplexity(exact, following):.2f}")
    for bundle in options.smaller:
        other, mb = log_probabilities(bundle, tokens, options.scored, options.rows)
        divergence = (np.exp(exact) * (exact - other)).sum(axis=-1)
        print(
            f"{bundle.name}: {mb:.1f} MB, KL {divergence.mean():.5f} nats, largest "
            f"{divergence.max():.3f}, perplexity {perplexity(other, following):.2f}, same first "
            f"choice {np.mean(exact.argmax(axis=-1) == other.argmax(axis=-1)):.1%}"
        )


def perplexity(log_probabilities: Float64, following: Sequence[int]) -> float:
    """Returns that of the tokens that follow each row but the last."""
    rows = np.arange(len(following))
    return float(np.exp(-log_probabilities[rows, np.asarray(following)].mean()))


if __name__ == "__main__":
    main()
