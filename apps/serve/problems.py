"""What is wrong with a request, from the engine's errors to words of clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgedec.apps.serve.core import ServeError, invalid
from edgedec.models.errors import LARGER_CONTEXT, ConfigError, PromptTooLongError, SessionError

OVERFLOW = "exceed_context_size_error"
"""The type that clients of llama-server match on, with ``n_prompt_tokens`` and ``n_ctx``."""


def context_overflow(error: PromptTooLongError) -> ServeError:
    """Returns the problem that a prompt does not fit the context.

    Clients of OpenAI look for its code. LiteLLM looks for the first words, LangChain for "prompt is
    too long", and in streams for "exceeds the context window".
    """
    message = (
        f"This model's maximum context length is {error.context} tokens, but the prompt is "
        f"too long: it has {error.count} and exceeds the context window. Shorten the prompt, or "
        f"use {LARGER_CONTEXT}"
    )
    return ServeError(
        400,
        OVERFLOW,
        message,
        code="context_length_exceeded",
        n_prompt_tokens=error.n_tokens,
        n_ctx=error.context,
    )


@contextmanager
def client_errors() -> Iterator[None]:
    """Turns errors of the engine into errors that clients know.

    Raises:
        ServeError: The request is wrong.
    """
    try:
        yield
    except PromptTooLongError as error:
        raise context_overflow(error) from None
    except (ConfigError, SessionError) as error:
        raise invalid(str(error)) from None
