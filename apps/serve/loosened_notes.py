"""Says what of tools' schemas is not enforced: to the client in a header, and in the log."""

from __future__ import annotations

import asyncio
import logging

from edgedec.apps.serve import tools
from edgedec.apps.serve.core import NONE, ChatPrompt, CoreRequest
from edgedec.apps.serve.problems import client_errors
from edgedec.apps.serve.responses import Header

HEADER = b"x-edgedec-loosened"
_MAX_BYTES = 4096
_MAX_LOGGED = 10_000

logger = logging.getLogger(__name__)


class LoosenedNotes:
    """Makes the notes of requests; the log gets each of them once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    async def headers(self, request: CoreRequest) -> list[Header]:
        """Returns the header that names tools and the keywords that are not enforced, if any.

        Raises:
            ServeError: llguidance is missing.
        """
        prompts = [
            prompt for prompt in request.prompts
            if isinstance(prompt, ChatPrompt) and prompt.tools and prompt.choice != NONE
        ]  # fmt: skip
        if not prompts:
            return []
        notes = await asyncio.to_thread(_notes, prompts)
        for note in notes:
            self._log(note)
        value = "; ".join(notes).encode()[:_MAX_BYTES]
        return [(HEADER, value)] if value else []

    def _log(self, note: str) -> None:
        if note not in self._logged and len(self._logged) < _MAX_LOGGED:
            self._logged.add(note)
            logger.warning("not enforced of the schema of the tool %s", note)


def _notes(prompts: list[ChatPrompt]) -> list[str]:
    with client_errors():
        return [
            ascii(f"{name}: {', '.join(keywords)}")[1:-1]
            for prompt in prompts
            for name, keywords in tools.loosened(prompt).items()
        ]
