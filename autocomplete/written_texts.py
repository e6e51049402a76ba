"""Keeps what is written where suggestions are made, for a draft head to learn from."""

from __future__ import annotations

import logging
from collections.abc import Callable

from edgedec.autocomplete.document import Window
from edgedec.models.errors import EdgedecError
from edgedec.runtime.engine.replay_buffer import ReplayBuffer

_LOG = logging.getLogger(__name__)

_ENOUGH = 400
"""Characters typed in one place for a text to be kept."""

_FEWEST = 80
"""The same, where somebody turns to another place."""


class WrittenTexts:
    """Follows the windows of documents; of each place that was written at, the model's prompt is
    kept now and then.

    Args:
        prompt: From a window to what the model reads of it.
    """

    def __init__(self, buffer: ReplayBuffer, prompt: Callable[[Window], list[int]]) -> None:
        self._buffer = buffer
        self._prompt = prompt
        self._latest: Window | None = None
        self._n_typed = 0

    def write(self, window: Window) -> None:
        """A document is now as ``window`` says."""
        latest = self._latest
        typed = None if latest is None else window.typed_since(latest)
        if typed is None:
            self._keep(_FEWEST)
        self._latest = window
        self._n_typed += len(typed or "")
        self._keep(_ENOUGH)

    def close(self) -> None:
        """Keeps what was written last."""
        self._keep(_FEWEST)

    def _keep(self, least: int) -> None:
        """Keeps the latest window, if ``least`` characters were typed since one was kept."""
        if self._latest is None or self._n_typed < least:
            return
        self._n_typed = 0
        try:
            self._buffer.keep(self._prompt(self._latest))
        except EdgedecError as error:
            _LOG.warning("nothing is kept of what was written: %s", error)
