"""Tokens that a request forbids: repeated n-grams, bad words, an end that comes too early.

They have the meaning that they have in transformers, over prompt and output together.

Source: transformers ``generation/logits_process.py`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from edgedec.runtime.config import SamplingConfig
from edgedec.runtime.sampling.token_mask import Allowed, TokenMask

Gram = tuple[int, ...]


class Bans:
    """A `TokenMask` of outputs without what ``sampling`` forbids."""

    is_finished = False

    def __init__(
        self, sampling: SamplingConfig, n_ids: int, stop_token_ids: frozenset[int]
    ) -> None:
        """n_ids: the model's logits. stop_token_ids: what ends an output."""
        self._n_ids, self._stops = n_ids, stop_token_ids
        self._size = sampling.no_repeat_ngram_size
        self._n_least = sampling.min_new_tokens
        self._first = sampling.begin_suppress_tokens
        ends = {(stop,) for stop in stop_token_ids}
        words = [word for word in sampling.bad_words_ids if word not in ends]
        self._always = [word[0] for word in words if len(word) == 1]
        self._words = [word for word in words if len(word) > 1]
        self._longest = max([self._size, *map(len, self._words), 1])
        self.begin(())

    @property
    def is_free(self) -> bool:
        """From here on nothing is forbidden."""
        is_begun = self._n_new >= self._n_least and (self._n_new > 0 or not self._first)
        return is_begun and not (self._size or self._always or self._words)

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts after ``prompt``, whose n-grams count, too."""
        self._tokens = list(prompt)
        self._n_new = 0
        self._followers: dict[Gram, set[int]] = {}
        if self._size:
            for end in range(self._size, len(self._tokens) + 1):
                self._note(self._tokens[end - self._size : end])

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``; None allows all.

        Shapes: [V] bool.
        """
        n_before, n_new = len(self._tokens), self._n_new + len(tokens)
        text = [*self._tokens[max(0, n_before - self._longest) :], *tokens]
        banned: set[int] = set(self._always)
        if n_new < self._n_least:
            banned |= self._stops
        if n_new == 0:
            banned.update(self._first)
        banned.update(self._ends_of_words(text, n_before + len(tokens)))
        banned |= self._repeated(text, len(tokens), n_before + len(tokens))
        ids = [token for token in banned if token < self._n_ids]
        if not ids:
            return None
        row = np.ones(self._n_ids, np.bool_)
        row[ids] = False
        return row

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted."""
        self._tokens.append(token)
        self._n_new += 1
        if self._size and len(self._tokens) >= self._size:
            self._note(self._tokens[-self._size :])

    def forced(self) -> Sequence[int]:
        """Returns no tokens: nothing has to follow."""
        return ()

    def _note(self, gram: Sequence[int]) -> None:
        self._followers.setdefault(tuple(gram[:-1]), set()).add(gram[-1])

    def _ends_of_words(self, text: Sequence[int], n_tokens: int) -> Iterable[int]:
        """Yields the last tokens of bad words whose other tokens end ``text``."""
        for *beginning, last in self._words:
            n = len(beginning)
            if n < n_tokens and list(text[len(text) - n :]) == beginning:
                yield last

    def _repeated(self, text: list[int], n_path: int, n_tokens: int) -> set[int]:
        """Returns the tokens that earlier followed what ``text`` ends with.

        n_path: tokens at its end that were not accepted. n_tokens: its length with what was cut.
        """
        size = self._size
        if not size or n_tokens + 1 < size:
            return set()
        end = tuple(text[len(text) - size + 1 :])
        banned = set(self._followers.get(end, ()))
        for stop in range(len(text) - n_path + 1, len(text) + 1):
            if stop >= size and tuple(text[stop - size : stop - 1]) == end:
                banned.add(text[stop - 1])
        return banned


class Both:
    """A `TokenMask` of what two allow. Where that is nothing, the first one decides."""

    def __init__(self, first: TokenMask, second: TokenMask) -> None:
        """first: what an output has to follow, such as a grammar."""
        self._first, self._second = first, second

    @property
    def is_free(self) -> bool:
        """From here on all is allowed."""
        return self._first.is_free and self._second.is_free

    @property
    def is_finished(self) -> bool:
        """Nothing may follow."""
        return self._first.is_finished

    def begin(self, prompt: Sequence[int]) -> None:
        """A new output starts after ``prompt``."""
        self._first.begin(prompt)
        self._second.begin(prompt)

    def row_after(self, tokens: Sequence[int]) -> Allowed | None:
        """Returns the tokens allowed after the accepted ones and ``tokens``. Shapes: [V] bool."""
        row, allowed = self._first.row_after(tokens), self._second.row_after(tokens)
        if row is None or allowed is None:
            return allowed if row is None else row
        both = row & allowed
        return both if both.any() else row

    def accept(self, token: int) -> None:
        """Records ``token`` as emitted."""
        self._first.accept(token)
        self._second.accept(token)

    def forced(self) -> Sequence[int]:
        """Returns tokens that one of them expects to follow."""
        return self._first.forced() or self._second.forced()
