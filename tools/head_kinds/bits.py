"""Measures the light heads of bundles with their matrices in other numbers of bits.

python tools/head_kinds/bits.py FOLDER BUNDLE... --tests humaneval.jsonl specbench.jsonl --bits 4 3

The bundles' model answers the first prompts of each file of --tests. FOLDER keeps the answers. Of
each bundle a table says what share of its model's own tokens the head predicts, by depth, and how
many tokens a pass over 1, 2.. drafted ones keeps. Heads that were trained with rounding to 4 bits
gain nothing from more of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from accuracy import in_percent, right, rounded, stored_bytes, tokens_per_pass
from texts import Answers, read_answers

from edgedec.export.heads.bundle_weights import BundleWeights
from edgedec.models.head_ids import read_head_ids
from edgedec.models.manifest import read_manifest
from edgedec.training.heads.torch_head import TorchHead
from edgedec.training.heads.train_head import continued_weights, use_threads
from edgedec.training.loop import TrainingTexts

_EMBEDDING = "embed_tokens.weight"


def rows(bundle: Path, answers: Answers, bits: int) -> str:
    """Returns the row of a table: bits, size of the head, shares by depth, tokens per pass."""
    manifest = read_manifest(bundle)
    head = manifest.head
    assert head is not None
    assert head.head.head_ids is not None
    config = head.head.config
    ids = read_head_ids(bundle / head.head.head_ids, config.vocab_size).astype(np.int64)
    known = np.unique(np.concatenate([text.tokens for text in answers.texts])).astype(np.int64)
    weights = continued_weights(
        BundleWeights(bundle, manifest.target),
        BundleWeights.of_head(bundle, head),
        TrainingTexts((), answers.texts, known, ids),
    )
    size = 0.0
    for name, values in weights.items():
        if values.ndim == 2 and name != _EMBEDDING:
            weights[name] = rounded(values, bits)
            size += stored_bytes(values.size, bits)
    net = TorchHead(config, weights, max(len(text.tokens) for text in answers.texts), head.kind)
    hits = right(net, answers, known, ids, config.n_layers)
    kept = ", ".join(f"{tokens:.3f}" for tokens in tokens_per_pass(hits))
    return f"| {bits} | {size / 1e6:.1f} MB | {in_percent(hits.mean(0).tolist())} | {kept} |"


def main() -> None:
    """Does what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+", metavar="bundle")
    parser.add_argument("--tests", type=Path, nargs="+", required=True)
    parser.add_argument("--n-tests", type=int, default=24, help="prompts of each file of --tests")
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 6, 5, 4, 3])
    arguments = parser.parse_args()
    use_threads(1)
    for bundle in arguments.bundles:
        answers = read_answers(bundle, arguments.folder, arguments.tests, arguments.n_tests)
        print(f"{bundle}\n\n| bits | size | right by depth | tokens per pass |\n|---|---|---|---|")
        for bits in arguments.bits:
            print(rows(bundle, answers, bits), flush=True)


if __name__ == "__main__":
    main()
