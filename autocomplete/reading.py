"""What the model has read of documents."""

from __future__ import annotations

from collections import OrderedDict

_N_DOCUMENTS = 8


class Reading:
    """The latest prompt of each of the latest documents."""

    def __init__(self) -> None:
        self._prompts: OrderedDict[str, list[int]] = OrderedDict()

    @property
    def prompts(self) -> dict[str, list[int]]:
        """The latest prompt of each document by its name, the latest last."""
        return dict(self._prompts)

    def begin(self, name: str, tokens: list[int]) -> None:
        """Another prompt is read."""
        self._prompts[name] = tokens
        self._prompts.move_to_end(name)
        if len(self._prompts) > _N_DOCUMENTS:
            self._prompts.popitem(last=False)
