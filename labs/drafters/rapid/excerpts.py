"""The parts of a long text that resemble its end."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command

N_CHUNK = 64
"""Tokens of an excerpt."""

N_CHUNKS = 3
"""Most excerpts of a text."""


def excerpts(text: Sequence[int], query: Sequence[int]) -> list[int]:
    """Returns the chunks of ``text`` that resemble ``query`` most, in the order of the text.

    Words are tokens; what they count is BM25's.

    Raises:
        ConfigError: The extra ``retrieval`` is missing.
    """
    try:
        from bm25s import BM25
    except ImportError:
        raise ConfigError(
            f"method rapid needs bm25s, which is not installed: {install_command('retrieval')}"
        ) from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it sets itself to DEBUG
    chunks = [list(text[i : i + N_CHUNK]) for i in range(0, len(text), N_CHUNK)]
    index = BM25()
    index.index([list(map(str, chunk)) for chunk in chunks], show_progress=False)
    n = min(N_CHUNKS, len(chunks))
    numbers, _ = index.retrieve([list(map(str, query))], k=n, show_progress=False)
    return [token for i in sorted(map(int, numbers[0])) for token in chunks[i]]
