"""A conversation: messages so far, and turns that reuse the KV cache of the ones before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_type
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import OnDone, Stream
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.text.prompt import Prompt
from edgedec.runtime.text.tokenizer import Codec


class Host(Protocol):
    """What a conversation asks of its engine."""

    @property
    def tokenizer(self) -> Codec:
        """The model's tokenizer."""

    def encode(self, prompt: Prompt) -> list[int]:
        """Returns the ids of a prompt."""

    def open_stream(
        self,
        prompt: Prompt,
        config: GenerationConfig | None,
        on_progress: Progress | None,
        on_done: OnDone | None = None,
        is_answer: bool = False,
    ) -> Stream:
        """Returns the output as it appears, as `Engine.open_stream` does."""


class Conversation:
    """Turns of one chat. Made by `Engine.conversation`."""

    def __init__(self, host: Host, system: str | None, config: GenerationConfig | None) -> None:
        self._host = host
        self._config = config
        self._stream: Stream | None = None
        self._cached: tuple[list[int], tuple[int, ...]] = ([], ())  # latest prompt and answer
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
        on_progress: Progress | None = None,
    ) -> Stream:
        """Returns the answer to ``text`` as it appears.

        `Stream.stop` keeps what was answered as the assistant's message; `Stream.cancel` drops the
        turn, question included. An unfinished earlier answer is stopped.

        Raises:
            SessionError: The conversation is longer than the context, or its latest answer is being
                computed in another thread.
        """
        check_type("the text to answer", text, str, "text")
        self._finish_answer()
        messages = [*self._messages, {"role": "user", "content": text}]
        ids = keep_generated(self._host.encode(messages), *self._cached, self._host.tokenizer)

        def on_done(result: GenerationResult, is_dropped: bool) -> None:
            if not is_dropped:
                self._messages = [*messages, {"role": "assistant", "content": result.text}]
                self._cached = ids, result.token_ids

        config = self._config if config is None else config
        self._stream = self._host.open_stream(ids, config, on_progress, on_done, True)
        return self._stream

    def _finish_answer(self) -> None:
        """Stops the answer in progress, if any.

        Raises:
            SessionError: Another thread is computing it right now.
        """
        if self._stream is None or self._stream.is_finished:
            return
        if self._stream.is_running:
            raise SessionError(
                "the conversation is busy with another answer: finish it, or stop() it and wait"
            )
        self._stream.stop()


def keep_generated(
    ids: list[int], prompt: Sequence[int], answer: Sequence[int], codec: Codec
) -> list[int]:
    """Returns ``ids`` with the answer spelt by the tokens the model chose, if it says the same.

    A model need not spell a text as the tokenizer would; encoded again, the answer would part from
    the KV cache at its first such word.

    Args:
        ids: The conversation so far, encoded from its text.
        prompt: The ids that ``answer`` followed.
        answer: The generated ids, the token that ended them included.
    """
    if not answer or ids[: len(prompt)] != list(prompt):
        return ids
    text = codec.decode(answer)
    end = len(prompt) + len(codec.encode(text))
    if codec.decode(ids[len(prompt) : end]) != text:
        return ids
    if ids[end : end + 1] == list(answer[-1:]):
        answer = answer[:-1]
    return [*prompt, *answer, *ids[end:]]
