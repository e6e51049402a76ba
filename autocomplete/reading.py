"""What the model has read of documents, as far as the one who asks can tell."""

from __future__ import annotations

from collections import OrderedDict

from edgedec.runtime.text.common_prefix import common_prefix

_N_DOCUMENTS = 8

_SHORT = 16
"""Tokens of a prompt's end: they are read in one pass, and the next key changes them."""


class Reading:
    """The prompt that is being read, and the latest one of each of the latest documents."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, list[int]] = OrderedDict()
        self._tokens: list[int] = []
        self._n_read = 0

    @property
    def prompts(self) -> dict[str, list[int]]:
        """The latest prompt of each document by its name, the latest last."""
        return dict(self._prompts)

    def begin(self, name: str, tokens: list[int]) -> None:
        """Another prompt is read, of which the beginning may be that of the one before."""
        self._n_read = common_prefix(tokens, self._tokens[: self._n_read])
        self._tokens = self._prompts[name] = tokens
        self._prompts.move_to_end(name)
        if len(self._prompts) > _N_DOCUMENTS:
            self._prompts.popitem(last=False)

    def note(self, n_read: int) -> None:
        """So many of its tokens are read by now."""
        self._n_read = n_read

    @property
    def is_far_from_its_end(self) -> bool:
        """A pass under way is over tokens that the next prompt of the document will have too."""
        return len(self._tokens) - self._n_read > _SHORT
