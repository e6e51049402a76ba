"""Text from standard input beside a prompt."""

from __future__ import annotations

import sys
from pathlib import Path

from edgedec.apps.console.terminal import note
from edgedec.models.errors import ConfigError
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
