"""What a KV cache of codes costs: logits with it against those with float16, over a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.export.checkpoints.checkpoint import Checkpoint
from edgedec.export.checkpoints.published import plain_tokenizer
from edgedec.export.to_onnx.messages import load_model, save_model
from edgedec.export.to_onnx.passes.fuse_attention import set_kv_format
from edgedec.export.to_onnx.runners import FusedRunner
from edgedec.export.verifying.verify import GraphRunner, Logits, check_error, log_softmax
from edgedec.models.config import ModelConfig

CHUNK = 32
"""Tokens of a pass. A row of logits of 150,000 tokens takes 0.6 MB."""

_FLOAT16_GRAPH = "float16_kv_cache.onnx"

TEXT = '''\
The harbour at Vestrum freezes over in most winters, and for about nine weeks nothing larger than a
rowing boat can leave it. In 1874 the council paid 3,200 crowns for a steam cutter to keep a channel
open; it sank in its second season, and the town went back to sledges. What the fishermen did with
their time is less well recorded. Some mended nets, some went inland to fell timber, and a few, so
the parish book says, "learned their letters from the pastor's widow, who asked for no payment but
salted herring."

When the ice broke, usually in the last days of March, everybody who could walk came down to the
quay. The first boat out carried the oldest skipper and the youngest hand. It was thought bad luck
to speak before the lighthouse was astern, and worse luck to whistle. The skipper would then ask
three questions: where does the wind come from, what lies beneath the keel, and who is waiting at
home? A hand who knew all three answers was given a share of the catch.

```python
def median(values: list[float]) -> float:
    """Returns the middle of the values, or the mean of the two that are nearest to it."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2 == 1:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


assert median([3.0, 1.0, 2.0]) == 2.0
assert median([4.0, 1.0, 3.0, 2.0]) == 2.5
```

Question: a train leaves at 9:40 and arrives at 13:05. How long is the journey?
Answer: from 9:40 to 13:00 it is 3 hours and 20 minutes, and 5 minutes more make 3 hours 25 minutes.

Die Fischer von Vestrum kannten die drei Antworten. Les pêcheurs les connaissaient aussi, mais ils
n'en parlaient jamais avant d'avoir passé le phare.
'''


def kv_error_tokens(checkpoint: Checkpoint, context: int) -> list[int]:
    """Returns the tokens of `TEXT`, or as many as fit ``context``.

    A tokenizer that finds none in it, as of other things than text, has its own ids measured.
    """
    vocab_size, special = checkpoint.config.vocab_size, checkpoint.special
    encoding = plain_tokenizer(checkpoint.tokenizer_json()).encode(TEXT, add_special_tokens=False)
    first = list(special.opening_ids)
    tokens = [token for token in [*first, *encoding.ids] if token < vocab_size]
    return (tokens or list(range(vocab_size)))[:context]


def measure_kv_error(
    graph: Path,
    config: ModelConfig,
    tokens: Sequence[int],
    encoder: Path | None = None,
) -> dict[str, Any]:
    """Returns how far the logits of an ONNX graph, whose KV cache has codes, are from float16's.

    encoder: its graph, if the model has one; it reads the tokens, too.

    Returns: as `compare_kv_formats`.
    """
    n_rows = len(tokens) * (1 if encoder is None else 2)
    with with_float16(graph, config) as reference:
        int8, float16 = (FusedRunner(path, config, n_rows) for path in (graph, reference))
        if encoder is not None:
            for runner in (int8, float16):
                runner.read_source(encoder, tokens)
        return compare_kv_formats(int8, float16, tokens)


def compare_kv_formats(
    int8: GraphRunner, float16: GraphRunner, tokens: Sequence[int]
) -> dict[str, Any]:
    """Returns how far the logits of one graph are from another's, over ``tokens``.

    Returns:
        ``n_tokens``; ``max_abs_error`` and ``mean_abs_error`` of logits; ``logit_std``, the spread
        of a row of float16's, to judge them by; ``top1_agreement`` in [0, 1]; ``kl_nats`` and
        ``max_kl_nats``, mean and largest over tokens of KL(float16 || int8).
    """
    measured = []
    for start in range(0, len(tokens), CHUNK):
        chunk = tokens[start : start + CHUNK]
        parents = range(-1, len(chunk) - 1)
        logits = (runner.compute_logits(chunk, parents, start) for runner in (int8, float16))
        measured.append(_by_token(*logits))
    measures = {name: np.concatenate([part[name] for part in measured]) for name in measured[0]}
    return {
        "n_tokens": len(tokens),
        "max_abs_error": float(measures["max_abs_error"].max()),
        "mean_abs_error": float(measures["mean_abs_error"].mean()),
        "logit_std": float(measures["logit_std"].mean()),
        "top1_agreement": float(measures["is_top1_equal"].mean()),
        "kl_nats": float(measures["kl_nats"].mean()),
        "max_kl_nats": float(measures["kl_nats"].max()),
    }


def check_kv_error(error: dict[str, Any], kv_format: str, name: str) -> None:
    """Raises an UnsupportedModelError if a KV cache of codes costs the model ``name`` too much."""
    check_error(
        error,
        f"with an {kv_format} KV cache the logits of {name} are {{}} from those with float16",
        "export it with --kv-cache float16",
    )


@contextmanager
def with_float16(graph: Path, config: ModelConfig) -> Iterator[Path]:
    """Yields the same graph with a float16 KV cache, beside ``graph``, whose weights it reads."""
    model = load_model(graph)
    set_kv_format(model, config, "float16")
    path = graph.with_name(_FLOAT16_GRAPH)
    try:
        save_model(model, path)
        yield path
    finally:
        path.unlink(missing_ok=True)


def _by_token(logits: Logits, expected: Logits) -> dict[str, npt.NDArray[Any]]:
    """Returns measures of each row. Shapes: logits, expected [T, V]; measures [T]."""
    error = np.abs(logits - expected)
    log_p, log_q = log_softmax(expected), log_softmax(logits)
    return {
        "max_abs_error": error.max(axis=-1),
        "mean_abs_error": error.mean(axis=-1),
        "logit_std": expected.std(axis=-1),
        "is_top1_equal": logits.argmax(axis=-1) == expected.argmax(axis=-1),
        "kl_nats": np.sum(np.exp(log_p) * (log_p - log_q), axis=-1),
    }
