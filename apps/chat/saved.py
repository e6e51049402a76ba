"""Chats in files: the messages as JSON, as other programs read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError
from edgedec.system.files import replace_text


def save_chat(path: Path, messages: Sequence[Mapping[str, Any]]) -> None:
    """Writes messages to ``path``, for its owner alone.

    Raises:
        ConfigError: Something other than a chat is there, or the file cannot be written.
    """
    if path.exists():
        load_chat(path)  # or else a slip would replace somebody's file
    try:
        text = json.dumps(list(messages), indent=2, ensure_ascii=False)
        replace_text(path, text + "\n", is_private=True)
    except OSError as error:
        raise ConfigError(f"cannot save the chat in {path}: {error.strerror}") from None


def load_chat(path: Path) -> list[dict[str, Any]]:
    """Returns the messages in ``path``.

    Raises:
        ConfigError: It cannot be read, or holds something else.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not a saved chat: it holds no JSON") from None
    is_chat = isinstance(content, list) and all(
        isinstance(message, dict)
        and isinstance(message.get("role"), str)
        and isinstance(message.get("content"), str)
        for message in content
    )
    if not is_chat:
        raise ConfigError(
            f"{path} is not a saved chat: expected a list of messages with role and content"
        )
    return list(content)
