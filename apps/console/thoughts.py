"""What a model thinks before it answers, on standard error."""

from __future__ import annotations

import sys

from edgedec.apps.console.output import visible

_DIM, _PLAIN = "\x1b[2m", "\x1b[22m"


class ThoughtWriter:
    """Writes thoughts as they appear, dim at a terminal; standard output has the answer alone."""

    def __init__(self) -> None:
        self._is_open = False

    def write(self, text: str) -> None:
        """Writes more of a thought."""
        if not text:
            return
        is_dim = sys.stderr.isatty()
        sys.stderr.write(f"{_DIM}{visible(text)}{_PLAIN}" if is_dim else visible(text))
        sys.stderr.flush()
        self._is_open = True

    def end(self) -> None:
        """Ends the thought, if there was one."""
        if self._is_open:
            sys.stderr.write("\n\n")
            sys.stderr.flush()
        self._is_open = False
