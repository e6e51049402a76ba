"""What the model has read of documents."""

from __future__ import annotations

_N_DOCUMENTS = 8


class ReadPrompts:
    """The latest prompt of each of the latest documents."""

    def __init__(self) -> None:
        self._prompts: dict[str, list[int]] = {}

    @property
    def prompts(self) -> dict[str, list[int]]:
        """The latest prompt of each document by its name, the latest last."""
        return dict(self._prompts)

    def begin(self, name: str, tokens: list[int]) -> None:
        """Another prompt is read."""
        others = [(other, read) for other, read in self._prompts.items() if other != name]
        # Another table each time, for other threads may be reading the one before.
        self._prompts = dict([*others[1 - _N_DOCUMENTS :], (name, tokens)])
