"""What is wrong with a request, from the engine's errors to words of clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edgedec.apps.serve.core import ServeError, invalid
from edgedec.models.errors import ConfigError, PromptTooLongError, SessionError


@contextmanager
def client_errors() -> Iterator[None]:
    """Turns errors of the engine into errors that clients know.

    Raises:
        ServeError: The request is wrong.
    """
    try:
        yield
    except PromptTooLongError as error:
        # The type and the two numbers are what clients of llama-server match on.
        numbers = {"n_prompt_tokens": error.n_tokens, "n_ctx": error.context}
        raise ServeError(400, "exceed_context_size_error", str(error), **numbers) from None
    except (ConfigError, SessionError) as error:
        raise invalid(str(error)) from None
