"""Other ways to go on at a place of a document."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgedec.autocomplete.answer import first_line
from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document
from edgedec.autocomplete.layout import PromptLayout
from edgedec.autocomplete.offer import Offer
from edgedec.autocomplete.repeats import without_repeats
from edgedec.runtime.config.suggestion import SuggestConfig
from edgedec.runtime.decoding.strategy import TARGET
from edgedec.runtime.engine.engine import Engine


class Unwanted(Exception):  # noqa: N818  a message to whoever asked, not an error
    """Nobody waits for the alternatives any more."""


class Alternatives:
    """Looks for them with the engine and the prompts of one autocompleter."""

    def __init__(self, engine: Engine, layout: PromptLayout, config: AutocompleteConfig) -> None:
        self._engine = engine
        self._layout = layout
        self._config = config

    def find(
        self, document: Document, version: int, n: int, is_wanted: Callable[[], bool]
    ) -> list[Offer]:
        """Returns at most ``n`` offers with different beginnings, the likeliest first.

        Args:
            is_wanted: Asked between passes.

        Raises:
            Unwanted: It said no.
        """
        started_s = time.perf_counter()
        window = self._layout.window(document)
        tokens = self._layout.prompt(window)
        n_tokens = min(self._config.max_new_tokens, (self._engine.context - len(tokens)) // n)
        if not tokens or n_tokens < 1:
            return []

        def check(phase: str, done: int, total: int) -> None:
            if not is_wanted():
                raise Unwanted

        config = SuggestConfig(
            k=n,
            n_tokens=n_tokens,
            stop_token_ids=frozenset(self._layout.stops),
            min_log_prob=self._config.min_log_prob,
        )
        completions = self._engine.suggest(tokens, config, check)
        ms = 1000 * (time.perf_counter() - started_s)
        offers: dict[str, Offer] = {}
        for completion in completions:
            text = completion.text if self._config.is_block else first_line(completion.text)
            text = without_repeats(text, window.before.rpartition("\n")[2], window.after)
            if text.strip():
                offer = Offer(text, version, True, completion.probability, ms, ((text, TARGET),))
                offers.setdefault(text, offer)
        return list(offers.values())
