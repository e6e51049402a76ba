"""Reads texts through a bundle's own kernels, for what draft heads are trained on."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

import numpy as np

from edgedec.models.hidden_states import normed
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.passes import Pass, Passes
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.features.feature_file import SELF, FeatureFile, TextFeatures

WINDOW = 512
"""Tokens that are read at once, as one text."""

SHORTEST = 16
"""Tokens of a text that is not left out."""

_PROMPT = 64

Window = tuple[str, list[int]]
"""What kind of text it is from, and its tokens."""

Answers = Callable[[Iterable[list[int]], int], Generator[list[int], None, None]]
"""From prompts, and the first one's number, to texts that begin with them."""


class FeatureReader:
    """Reads windows into a file, which may have some of them already.

    layers: those whose hidden states are read. epsilon: of their norms. report: called with what is
    going on, and tokens done of how many. is_over: asked before every window.
    """

    def __init__(
        self,
        engine: Engine,
        layers: Sequence[int],
        epsilon: float,
        file: FeatureFile,
        report: Callable[[str, int, int], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._sequence = engine.new_sequence()
        self._layers = tuple(layers)
        self._epsilon = epsilon
        self._file = file
        self._report = report
        self._is_over = is_over

    def read(self, windows: Iterable[Window], n_tokens: int) -> None:
        """Reads ``windows`` until the file has ``n_tokens`` of them; those it has are skipped.

        Raises:
            OSError: The disk is full.
        """
        n_texts, n_read = self._known(is_own=False)
        for window in islice(_long(windows), n_texts, None):
            if n_read >= n_tokens or self._is_over():
                return
            self._report("read", n_read, n_tokens)
            self._file.add(self._read(window))
            n_read += len(window[1])

    def write(self, prompts: Iterable[list[int]], n_tokens: int, answers: Answers) -> None:
        """Has the model answer ``prompts``; keeps ``n_tokens`` of them and its answers.

        Raises:
            OSError: The disk is full.
        """
        n_texts, n_read = self._known(is_own=True)
        with closing(answers(islice(prompts, n_texts, None), n_texts)) as texts:
            while n_read < n_tokens and (text := next(texts, None)) and not self._is_over():
                self._file.add(self._read((SELF, text)))
                n_read += len(text)
                self._report("write", min(n_read, n_tokens), n_tokens)

    def _known(self, is_own: bool) -> tuple[int, int]:
        """Returns texts and tokens that the file has, of those the model wrote or of others."""
        file = self._file
        lengths = [
            n for n, kind in zip(file.lengths, file.kinds, strict=True) if (kind == SELF) == is_own
        ]
        return len(lengths), sum(lengths)

    def _read(self, window: Window) -> TextFeatures:
        return self._engine.run(self._passes(window))

    def _passes(self, window: Window) -> Passes[TextFeatures]:
        (kind, tokens), sequence, layers = window, self._sequence, self._layers
        sequence.truncate(0)
        hidden, ids, probs = [], [], []
        for start in range(0, len(tokens), PREFILL_CHUNK):
            chunk = TokenTree.chain(tokens[start : start + PREFILL_CHUNK])
            rows = yield Pass(sequence, chunk, range(len(chunk)), layers, with_logits=False)
            sequence.commit(range(len(chunk)))
            normal = [normed(rows.hidden[layer], self._epsilon) for layer in layers]
            normal = normal or [np.zeros((len(chunk), 0), np.float32)]
            stats = rows.stats
            hidden.append(np.concatenate(normal, axis=1).astype(np.float16))
            ids.append(stats.top_ids.astype(np.int32))
            probs.append(np.exp(stats.top_logits - stats.log_sum_exp[:, None]).astype(np.float16))
        parts = (np.concatenate(part) for part in (hidden, ids, probs))
        return TextFeatures(kind, np.array(tokens, np.int32), *parts)


def beginnings(windows: Iterable[Window]) -> Iterator[list[int]]:
    """Yields the first tokens of ``windows``, for a model to go on with."""
    return (tokens[:_PROMPT] for _, tokens in _long(windows))


def _long(windows: Iterable[Window]) -> Iterator[Window]:
    return (window for window in windows if len(window[1]) >= SHORTEST)
