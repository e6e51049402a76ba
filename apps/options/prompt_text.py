"""The text of a prompt: from the command line, a file or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from edgedec.apps.console.terminal import note
from edgedec.models.errors import ConfigError
from edgedec.system.files import read_text
from edgedec.system.streams import has_input

_PATIENCE_S = 3.0
"""How long a pipe may be open without a byte. Scripts often leave one open for nothing."""


def with_piped_text(text: str, prompt: str | None, prompt_file: Path | None) -> str:
    """Returns the prompt ``text`` behind what standard input holds, a blank line between them.

    prompt, prompt_file: where ``text`` is from; if from standard input, it stays as it is.

    Raises:
        ConfigError: Standard input is not UTF-8 text.
    """
    if prompt == "-" or (prompt is None and prompt_file is None):
        return text
    piped = _piped_text().rstrip("\r\n")
    return f"{piped}\n\n{text}" if piped.strip() else text


def _piped_text() -> str:
    """Returns what standard input holds; nothing if it is a terminal or stays silent."""
    try:
        descriptor = sys.stdin.fileno()
        if sys.stdin.isatty():
            return ""
    except (OSError, ValueError, AttributeError):  # a stand-in of some other program
        return ""
    if not has_input(descriptor, _PATIENCE_S):
        note(
            f"standard input is open and gave nothing in {_PATIENCE_S:.0f} s, so only the prompt "
            "is used (</dev/null: do not wait)"
        )
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"standard input is not UTF-8: byte {error.start} is "
            f"0x{error.object[error.start]:02x}; convert it, or use </dev/null to leave it out"
        ) from None


def read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    """Returns the prompt that was given, read from its file or from standard input.

    Raises:
        ConfigError: It cannot be read, is empty, or is not UTF-8 text.
    """
    if prompt is not None and prompt_file is not None:
        raise typer.BadParameter("got PROMPT and --prompt-file, expected one of them")
    is_piped = prompt is None and prompt_file is None and not sys.stdin.isatty()
    if not is_piped and prompt is None and prompt_file is None:
        raise typer.BadParameter("expected PROMPT (- for standard input) or --prompt-file")
    text = _read_prompt("-" if is_piped else prompt, prompt_file)
    if not text.strip():
        raise ConfigError("the prompt is empty: write one, pipe one in, or use --prompt-file")
    return text


def _read_prompt(prompt: str | None, prompt_file: Path | None) -> str:
    try:
        if prompt_file is not None:
            return read_text(prompt_file)
        return sys.stdin.buffer.read().decode("utf-8-sig") if prompt == "-" else str(prompt)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the prompt is not UTF-8: byte {error.start} is 0x{error.object[error.start]:02x}; "
            "convert it first, with iconv for instance"
        ) from None
    except OSError as error:
        source = prompt_file or "standard input"
        raise ConfigError(f"cannot read the prompt from {source}: {error.strerror}") from None
