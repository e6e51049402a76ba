"""Decoding of masked diffusion models as LLaDA's paper has it, over a function of whole texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Rows = Callable[[Sequence[int]], npt.NDArray[np.float32]]


def unmasked(
    rows: Rows,
    prompt: Sequence[int],
    n_new: int,
    mask: int,
    steps: int | None = None,
    block: int | None = None,
    shift: int = 0,
) -> tuple[list[int], float]:
    """Returns the output, and the least by which a choice was ahead of the one not made.

    Every step computes the whole text. Of the block's masked tokens those of the highest
    probability are put in place, as many as an even pace asks for, and stay. Blocks are decided one
    after the other. ``steps`` are of all blocks together. The logits of a token are in the row
    ``shift`` places before it. The mask itself is no token of the output.

    Source: LLaDA (arXiv 2502.09992), algorithm 5 and section 2.4.
    """
    text = [*prompt, *[mask] * n_new]
    size = block or n_new
    margin = np.inf
    n_blocks = n_new // size
    for first in range(len(prompt), len(text), size):
        places = range(first, first + size)
        n_steps = size if steps is None else steps // n_blocks
        for step in range(n_steps):
            n_due = size // n_steps + (step < size % n_steps)
            logits = rows(text).astype(np.float64)
            probabilities = np.exp(logits - logits.max(axis=1, keepdims=True))
            probabilities /= probabilities.sum(axis=1, keepdims=True)
            probabilities[:, mask] = -1
            found = []
            for place in (p for p in places if text[p] == mask):
                row = probabilities[place - shift]
                second, best = np.partition(row, -2)[-2:]
                margin = min(margin, best - second)
                found.append((best, place, int(row.argmax())))
            found.sort(reverse=True)
            if n_due < len(found):
                margin = min(margin, found[n_due - 1][0] - found[n_due][0])
            for _, place, token in found[:n_due]:
                text[place] = token
    return text[len(prompt) :], float(margin)
