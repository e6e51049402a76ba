"""Graphs whose passes have fixed sizes: which there are, and how a pass is cut into them.

Devices that compile ahead of time want every size stated. A package then holds one function for
each kind of pass; rows that nobody asked for fill up what a pass is short of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class StaticPass:
    """One function of a package: ``n_rows`` tokens, logits of ``n_logits`` of them."""

    name: str
    n_rows: int
    n_logits: int


DECODE = StaticPass("decode", 1, 1)
VERIFY = StaticPass("verify", 8, 8)
PREFILL = StaticPass("prefill", 64, 1)
STATIC_PASSES = (PREFILL, DECODE, VERIFY)

BUCKETS = (
    *(StaticPass(f"rows_{n}", n, n) for n in (1, 4, 8, 16)),
    StaticPass("prefill", 64, 1),
)
"""Passes of devices for which every size is a graph of its own. The last is for prompts."""

CONTEXT_BINARIES = ("context.bin", *(f"{bucket.name}.bin" for bucket in BUCKETS))
"""Files that hold what was compiled for a Qualcomm NPU: all graphs in one, or each in its own."""

SCALE_KEYS = ("logits_scale", "logits_zero_point")
"""What a graph for a Qualcomm NPU states of its logits, which are codes."""

SPARE_ROWS = 2 * PREFILL.n_rows
"""Rows of a KV cache behind the context: what fills up a pass, and tokens that were not kept."""


@dataclass(frozen=True)
class PassPart:
    """Rows ``start`` to ``stop`` of a pass, computed by ``static``."""

    static: StaticPass
    start: int
    stop: int


def coreml_port(name: str) -> str:
    """Returns what Core ML calls the port ``name``: it takes no dots."""
    return name.replace(".", "_")


def parts_of_pass(n_rows: int, logit_rows: Sequence[int]) -> Iterator[PassPart]:
    """Yields the parts of a pass of ``n_rows``, whose rows ``logit_rows`` give logits.

    Many rows at once pay where at most one of them gives logits, few are cheaper in the small
    functions.
    """
    start = 0
    while start < n_rows:
        left = n_rows - start
        n_asked = sum(start <= row < start + PREFILL.n_rows for row in logit_rows)
        if left == 1:
            static = DECODE
        elif left > 2 * VERIFY.n_rows and n_asked <= PREFILL.n_logits:
            static = PREFILL
        else:
            static = VERIFY
        stop = min(start + static.n_rows, n_rows)
        yield PassPart(static, start, stop)
        start = stop
