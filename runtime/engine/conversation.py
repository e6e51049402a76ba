"""A conversation: messages so far, and turns that reuse the KV cache of the ones before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from edgedec.models.errors import PromptTooLongError, SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_type
from edgedec.runtime.config.settings import with_settings
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.stream import Stream
from edgedec.runtime.engine.streams import Streams
from edgedec.runtime.sequences.prefill import Progress
from edgedec.runtime.text.prompt import Message, checked_message
from edgedec.runtime.text.tokenizer import Codec

if TYPE_CHECKING:
    from typing import Unpack

    from edgedec.runtime.config.settings import Settings


class Conversation:
    """Turns of one chat. Made by `Engine.conversation`."""

    def __init__(
        self,
        streams: Streams,
        config: GenerationConfig,
        messages: Sequence[Message] = (),
        is_sliding: bool = False,
    ) -> None:
        """Makes a conversation; arguments as for `Engine.conversation`."""
        self._streams = streams
        self._config = config
        self._is_sliding = is_sliding
        self._stream: Stream | None = None
        self._cached: tuple[list[int], tuple[int, ...]] = ([], ())  # latest prompt and answer
        self._messages = [checked_message(message) for message in messages]
        self._first = self._n_lasting  # of the messages that the model is still given

    @property
    def messages(self) -> tuple[dict[str, Any], ...]:
        """The messages so far; a turn appears once its stream is finished."""
        return tuple(self._messages)

    @property
    def n_left_out(self) -> int:
        """Number of messages that the model is no longer given, because the context is full."""
        return self._first - self._n_lasting

    def send(
        self,
        text: str,
        config: GenerationConfig | None = None,
        on_progress: Progress | None = None,
        **settings: Unpack[Settings],
    ) -> Stream:
        """Returns the answer to ``text`` as it appears.

        `Stream.stop` keeps what was answered as the assistant's message; `Stream.cancel` drops the
        turn, question included. An unfinished earlier answer is stopped.

        Args:
            text: The question.
            config: As for `Engine.stream`; the conversation's own when None.
            on_progress: As for `Engine.stream`.
            settings: As for `Engine.stream`.

        Raises:
            SessionError: The conversation is longer than the context, or its latest answer is being
                computed in another thread.
        """
        check_type("the text to answer", text, str, "text")
        config = self._config if config is None else config
        check_type("config", config, GenerationConfig, "a GenerationConfig or None")
        config = with_settings(config, settings) if settings else config
        self._finish_answer()
        messages = [*self._messages, {"role": "user", "content": text}]
        first, encoded = self._fitted(messages, config)
        ids = keep_generated(encoded, *self._cached, self._streams.loaded.tokenizer)

        def on_done(result: GenerationResult, is_dropped: bool) -> None:
            if not is_dropped:
                answer = {"role": "assistant", "content": result.text}
                if result.reasoning:
                    answer["reasoning_content"] = result.reasoning
                self._messages = [*messages, answer]
                self._cached = ids, result.token_ids

        stream = self._streams.open(ids, config, on_progress, on_done, True)
        self._stream, self._first = stream, first
        return stream

    def undo(self) -> str | None:
        """Removes the latest question and what followed it; returns the question, or None.

        An unfinished answer is stopped first, and goes too.
        """
        self._finish_answer()
        starts = [i for i, message in enumerate(self._messages) if message["role"] == "user"]
        if not starts:
            return None
        content = self._messages[starts[-1]]["content"]
        del self._messages[starts[-1] :]
        self._first = min(self._first, max(len(self._messages), self._n_lasting))
        return content if isinstance(content, str) else str(content)

    @property
    def _n_lasting(self) -> int:
        """Number of messages at the beginning that are always given: system prompts."""
        n = 0
        while n < len(self._messages) and self._messages[n]["role"] in ("system", "developer"):
            n += 1
        return n

    def _fitted(
        self, messages: Sequence[Message], config: GenerationConfig
    ) -> tuple[int, list[int]]:
        """Returns the first turn that the model is given, and the ids of what it is given.

        When the context is full, enough of the oldest turns go to empty half of it: each time they
        go, the rest has to be read again.
        """
        context = self._streams.loaded.context
        most = context - min(config.max_new_tokens, context // 4)
        if not self._is_sliding:
            return self._first, self._encode(self._messages_from(messages, self._first), config)
        if (ids := self._encoded(messages, self._first, most, config)) is not None:
            return self._first, ids
        for limit in (context // 2, most):
            for first in self._later_turns(messages):
                if (ids := self._encoded(messages, first, limit, config)) is not None:
                    return first, ids
        return self._first, self._encode(self._messages_from(messages, len(messages) - 1), config)

    def _encode(self, messages: Sequence[Message], config: GenerationConfig) -> list[int]:
        variables = config.template_variables
        return self._streams.loaded.encoder.encode(messages, variables=variables)

    def _messages_from(self, messages: Sequence[Message], first: int) -> list[Message]:
        return [*messages[: self._n_lasting], *messages[first:]]

    def _later_turns(self, messages: Sequence[Message]) -> Iterator[int]:
        """Yields where turns begin after the first that the model is given now."""
        for i in range(self._first + 1, len(messages)):
            if messages[i]["role"] == "user":
                yield i

    def _encoded(
        self, messages: Sequence[Message], first: int, limit: int, config: GenerationConfig
    ) -> list[int] | None:
        """Returns the ids of the messages from ``first`` on, unless they are too many."""
        try:
            ids = self._encode(self._messages_from(messages, first), config)
        except PromptTooLongError:
            return None
        return ids if len(ids) <= limit else None

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
