"""What is typed in a chat: messages of one line or several, and the history of lines."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edgedec.apps.console.terminal import note
from edgedec.models.errors import ConfigError

QUOTES = '"""'
_N_KEPT_LINES = 1000


def read_message() -> str | None:
    """Returns the next message without the spaces around it; None at the end of input."""
    return joined(_read_line)


def joined(read_line: Callable[[str], str | None]) -> str | None:
    """Returns the next message: one line, or the lines between two triple quotes.

    read_line: given a prompt to show, returns the next line, or None at the end of input.
    """
    line = read_line("> ")
    if line is None or not line.startswith(QUOTES):
        return line
    lines = [line.removeprefix(QUOTES)]
    while not lines[-1].rstrip().endswith(QUOTES):
        if (line := read_line("... ")) is None:
            return "\n".join(lines).strip()
        lines.append(line)
    lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
    return "\n".join(lines).strip()


def _read_line(prompt: str) -> str | None:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip() if line else None
    with suppress(ImportError):
        import readline  # noqa: F401  gives input() a history and line editing
    try:
        return input(prompt).rstrip()
    except EOFError:
        note("")
        return None
    except KeyboardInterrupt:
        note("")
        raise


@contextmanager
def line_history(path: Path | None) -> Iterator[None]:
    """Begins with the lines in ``path``, and keeps there what is typed inside, for its owner alone.

    Raises:
        ConfigError: The file cannot be read or made.
    """
    if path is None or not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:
        raise ConfigError("--history needs Python's module readline, which is missing") from None
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        path.chmod(0o600)  # it may have been there
        readline.read_history_file(path)
    except OSError as error:
        raise ConfigError(f"cannot keep the history in {path}: {error.strerror}") from None
    try:
        yield
    finally:
        readline.set_history_length(_N_KEPT_LINES)
        try:
            readline.write_history_file(path)
        except OSError as error:
            note(f"the history in {path} was not written: {error.strerror}")
