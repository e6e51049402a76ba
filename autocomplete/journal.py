"""What becomes of an offer: whether it is written or something else is."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from edgedec.autocomplete.document import Window
from edgedec.autocomplete.learned import LearnedOffers
from edgedec.models.errors import EdgedecError
from edgedec.runtime.config.checks import check_type
from edgedec.runtime.text.tokenizer import Codec

_LOG = logging.getLogger(__name__)

_N_WAITING = 32
"""Lines that are learned at once: after each, drafts are looked for in an index made anew."""

_LONGEST = 400
"""Characters of a line that are learned."""


@dataclass
class _Offered:
    """An offer that was seen, and where. text: the longest that it became."""

    window: Window
    text: str
    probability: float


class Journal:
    """Follows offers until they are right or wrong; notes both, and the lines that were written.

    Args:
        learn: Takes the tokens of a text that may be written again.
    """

    def __init__(
        self, learned: LearnedOffers, codec: Codec, learn: Callable[[list[int]], None]
    ) -> None:
        check_type("learned", learned, LearnedOffers, "LearnedOffers or None")
        self._learned = learned
        self._codec = codec
        self._learn = learn
        self._offered: _Offered | None = None
        self._line: Window | None = None  # where something was offered that is not finished yet
        self._waiting: list[str] = []

    def offer(self, window: Window, text: str, probability: float) -> None:
        """Something is on offer at the cursor of a window."""
        known = self._offered
        typed = None if known is None else window.typed_since(known.window)
        if known is None or typed is None:
            self._offered = _Offered(window, text, probability)
        elif (typed + text).startswith(known.text):
            known.text, known.probability = typed + text, min(probability, known.probability)
        self._line = self._line or window

    def write(self, window: Window) -> None:
        """A document is now as ``window`` says."""
        if (offered := self._offered) is not None:
            typed = window.typed_since(offered.window)
            if typed is None:
                self._offered = None
            elif typed.startswith(offered.text):
                self._judge(offered, len(offered.text))
            elif not offered.text.startswith(typed):
                self._judge(offered, 0)
        if self._line is not None:
            typed = window.typed_since(self._line)
            if typed is None:
                self._line = None
            elif "\n" in typed:
                self._finish(self._line.before, typed)

    def close(self) -> None:
        """Learns what is waiting, and writes it down; says so where that cannot be."""
        waiting, self._waiting = self._waiting, []
        try:
            for text in waiting:
                self._learn(self._codec.encode(text))
            self._learned.write()
        except EdgedecError as error:
            _LOG.warning("nothing is learned of what was written: %s", error)

    def _judge(self, offered: _Offered, n_characters: int) -> None:
        self._learned.note(offered.probability, n_characters)
        self._offered = None

    def _finish(self, before: str, typed: str) -> None:
        """A line is whole: it is learned, behind the line before it."""
        context = before[-_LONGEST:].split("\n")[-2:]
        line = "\n".join(context) + typed[: typed.index("\n") + 1]
        self._line = None
        self._waiting.append(line[: 2 * _LONGEST])
        if len(self._waiting) >= _N_WAITING:
            self.close()
