"""How far a target's logits and choices are from those of the float32 reference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgedec import Engine, GenerationConfig
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree


def logits_after(source: Path, text: Sequence[int]) -> npt.NDArray[np.float32]:
    """Returns the float32 reference's logits of every token."""
    return ReferenceModel(open_checkpoint(str(source))).forward(text).logits


def error_of_passes(sequence: TokenSequence, source: Path, n_prompt: int, n_trees: int) -> float:
    """Returns the largest mean error of a row of logits, over the spread of logits.

    A prompt in several passes; trees of four, of which the third is kept, so that rows move
    together; and a row after rows that went and came back.
    """
    text = [(7 * i + 3) % 83 for i in range(n_prompt)]
    prompt = sequence.forward(TokenTree.chain(text), [len(text) - 1]).logits
    sequence.commit(range(len(text)))
    found, text_rows = [prompt[0].copy()], [len(text) - 1]
    for i in range(n_trees):
        tree = TokenTree((20 + i, 30 + i, 40 + i, 50 + i), (-1, -1, 0, 2))
        logits = sequence.forward(tree, [2]).logits
        sequence.commit((0, 2))
        text += [20 + i, 40 + i]
        found.append(logits[0].copy())
        text_rows.append(len(text) - 1)
    state = sequence.snapshot()
    sequence.truncate(5)
    sequence.restore(replace(state))
    found.append(sequence.forward(TokenTree.chain([79]), [0]).logits[0])
    expected = logits_after(source, [*text, 79])
    error = np.abs(found - expected[[*text_rows, -1]])
    return float(error.mean(axis=1).max() / expected.std())


def gap_of_tokens(engine: Engine, source: Path, prompt: str, config: GenerationConfig) -> float:
    """Returns how far below the reference's best logit a token is, over the spread of logits."""
    result = engine.generate(prompt, config)
    tokens = engine.tokenizer.encode(prompt)
    logits = logits_after(source, [*tokens, *result.token_ids])[len(tokens) - 1 : -1]
    chosen = np.take_along_axis(logits, np.array(result.token_ids)[:, None], axis=1)[:, 0]
    return float((logits.max(axis=1) - chosen).max() / logits.std())
