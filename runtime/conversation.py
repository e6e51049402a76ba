"""A conversation: messages so far, and turns that reuse the KV cache of the ones before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.generation import Stream
from edgedec.runtime.result import GenerationResult

OpenStream = Callable[..., Stream]
"""`Engine.open_stream`."""


class Conversation:
    """Turns of one chat. Made by `Engine.conversation`."""

    def __init__(
        self,
        open_stream: OpenStream,
        finish_stream: Callable[[], None],
        system: str | None,
        config: GenerationConfig | None,
    ) -> None:
        self._open_stream = open_stream
        self._finish_stream = finish_stream
        self._config = config
        self._messages: list[dict[str, Any]] = []
        if system is not None:
            self._messages.append({"role": "system", "content": system})

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The messages so far; a turn appears once its stream is finished."""
        return tuple(self._messages)

    def send(
        self,
        text: str,
        config: GenerationConfig | None = None,
        on_progress: Callable[[str, int, int], None] | None = None,
    ) -> Stream:
        """Returns the answer to ``text`` as it appears.

        `Stream.stop` keeps what was answered as the assistant's message; `Stream.cancel` drops the
        turn, question included. An unfinished earlier answer is stopped.

        Raises:
            SessionError: The conversation is longer than the context.
        """
        self._finish_stream()
        messages = [*self._messages, {"role": "user", "content": text}]

        def on_done(result: GenerationResult, is_dropped: bool) -> None:
            if not is_dropped:
                self._messages = [*messages, {"role": "assistant", "content": result.text}]

        return self._open_stream(messages, config or self._config, on_progress, on_done)
