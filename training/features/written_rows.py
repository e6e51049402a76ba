"""What a model showed while it wrote many texts at once: what draft heads learn from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from edgedec.kernels import row_stats
from edgedec.models.hidden_states import normed
from edgedec.training.features.feature_file import SELF, TextFeatures


class WrittenRows:
    """Hidden states behind some layers, and the likeliest tokens, of every row of every pass.

    layers: those whose hidden states are kept. epsilon: of their norms.
    """

    def __init__(self, layers: Sequence[int], epsilon: float) -> None:
        self._layers = tuple(layers)
        self._epsilon = epsilon
        self._hidden: dict[int, list[npt.NDArray[np.float16]]] = {layer: [] for layer in layers}
        self._top_ids: list[npt.NDArray[np.int32]] = []
        self._top_probs: list[npt.NDArray[np.float16]] = []

    def note_hidden(self, x: Tensor, layer: int) -> None:
        """Keeps ``x`` [B, T, D], the residual stream after ``layer`` layers, where it is wanted."""
        if layer in self._hidden:
            rows = normed(x.float().flatten(0, 1).numpy(), self._epsilon)
            self._hidden[layer].append(rows.astype(np.float16).reshape(x.shape))

    def note_logits(self, logits: Tensor) -> None:
        """Keeps the likeliest tokens of ``logits`` [B, T, V] float32, with their probabilities."""
        rows = logits.flatten(0, 1).numpy()
        _, log_sum_exp, _, ids, top = row_stats(rows)
        shape = *logits.shape[:2], ids.shape[1]
        self._top_ids.append(ids.astype(np.int32).reshape(shape))
        self._top_probs.append(np.exp(top - log_sum_exp[:, None]).astype(np.float16).reshape(shape))

    def keep(self, rows: list[int]) -> None:
        """Forgets all texts but ``rows``."""
        for layer, noted in self._hidden.items():
            self._hidden[layer] = [np.concatenate(noted, 1)[rows]]
        self._top_ids = [np.concatenate(self._top_ids, 1)[rows]]
        self._top_probs = [np.concatenate(self._top_probs, 1)[rows]]

    def texts(self, written: Sequence[Sequence[int]], starts: Sequence[int]) -> list[TextFeatures]:
        """Returns the features of texts that begin at the slots ``starts``.

        A text's last token is not among them where no pass went over it.
        """
        ids, probs = np.concatenate(self._top_ids, 1), np.concatenate(self._top_probs, 1)
        hidden = [np.concatenate(self._hidden[layer], 1) for layer in self._layers]
        texts = []
        for i, (tokens, start) in enumerate(zip(written, starts, strict=True)):
            of = i, slice(start, start + len(tokens))
            parts = [rows[of] for rows in hidden] or [np.zeros((len(ids[of]), 0), np.float16)]
            known = np.array(tokens[: len(ids[of])], np.int32)
            states = np.concatenate(parts, axis=1)
            texts.append(TextFeatures(SELF, known, states, ids[of], probs[of]))
        return texts
