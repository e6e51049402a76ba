"""What every verb says to people and to programs.

Results go to standard output; progress, logs and errors to standard error.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from edgedec.apps.console.output import output_error, visible


def write_out(text: str) -> None:
    """Writes to standard output, at once; to a terminal without what would steer it.

    Raises:
        OutputError: The disk is full, or standard output is closed.
        BrokenPipeError: Its reader went away.
    """
    _write_out(visible(text) if sys.stdout.isatty() else text)


def _write_out(text: str) -> None:
    try:
        sys.stdout.write(text)
    except OSError as error:
        raise output_error(error) from None
    flush_stdout()


def flush_stdout() -> None:
    """Raises: as `write_out`."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise output_error(error) from None


def print_json(document: Mapping[str, Any]) -> None:
    """Prints the one JSON document of a verb on standard output."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    write_out(text + "\n")


def print_error(error: BaseException) -> None:
    """Prints an error as one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if is_plain():
        _write_err(f"error: {visible(text)}\n")
        return
    from edgedec.apps.console.consoles import err

    err.print("error:", style="bold red", end=" ")
    err.print(text, markup=False, soft_wrap=True)


def note(text: str) -> None:
    """Prints a remark for the person at the terminal on standard error."""
    if is_plain():
        _write_err(f"{visible(text)}\n")
        return
    from edgedec.apps.console.consoles import err

    err.print(text, style="dim", markup=False, soft_wrap=True)


def _write_err(text: str) -> None:
    with suppress(OSError):  # remarks are no reason to lose what goes to standard output
        sys.stderr.write(text)
        sys.stderr.flush()


def is_plain() -> bool:
    """Returns whether standard error takes neither colours nor bars."""
    return not (sys.stderr.isatty() or os.environ.get("FORCE_COLOR"))


class TextWriter:
    """Writes generated text to standard output as it appears, painted with ``paint``.

    paint: from a text and the origin of its last token to what is written.
    """

    def __init__(self, paint: Callable[[str, str], str] = lambda text, origin: text) -> None:
        self._paint = paint
        stdout = sys.stdout
        if hasattr(stdout, "reconfigure"):
            stdout.reconfigure(errors="replace")
        self._is_terminal = stdout.isatty()
        self._ends_line = True

    def write(self, piece: str, origin: str = "") -> None:
        """Writes a piece at once; at a terminal without control characters."""
        if piece:
            shown = visible(piece) if self._is_terminal else piece
            _write_out(self._paint(shown, origin) if origin else shown)
            self._ends_line = piece.endswith("\n")

    def write_raw(self, signs: str) -> None:
        """Writes what steers a terminal."""
        _write_out(signs)

    def end_line(self) -> None:
        """Ends the line, unless the text did."""
        if not self._ends_line:
            self.write("\n")


@contextmanager
def stops_on_interrupt(stop: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C into a call of ``stop``; a second one interrupts as usual.

    Yields a function that says whether there was a Ctrl-C.
    """
    is_interrupted = False

    def on_interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            raise KeyboardInterrupt
        is_interrupted = True
        stop()

    previous = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: is_interrupted
    finally:
        signal.signal(signal.SIGINT, previous)


def bytes_text(n_bytes: int) -> str:
    """Returns a size for a person: ``98.1 MB``."""
    size = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"
