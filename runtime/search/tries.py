"""Tries at one prompt, written side by side, and the best of them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.checks import check_count
from edgedec.runtime.config.generation import MAX_TRIES
from edgedec.runtime.engine.many import OnResult, generate_many
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.engine.streams import Streams
from edgedec.runtime.search.best_of import (
    BestOf,
    Chooser,
    choose_of,
    find_chooser,
    seeded,
)
from edgedec.runtime.search.planned import Planned
from edgedec.runtime.text.prompt import Prompt, is_conversation


def best_of(
    streams: Streams,
    prompt: Prompt,
    n: int,
    chooser: str | Chooser,
    config: GenerationConfig,
    on_progress: OnResult | None,
) -> BestOf:
    """Returns ``n`` tries at ``prompt`` and the best of them; see `Engine.best_of`."""
    streams.loaded.check_sequential("several tries at an answer")
    chosen_by = find_chooser(chooser)
    check_count("n", n, 1, "the number of tries")
    if n > MAX_TRIES:
        raise ConfigError(f"n is {n}, expected at most {MAX_TRIES} tries")
    if isinstance(chosen_by, Planned):
        ids = streams.loaded.encoder.encode(prompt, variables=config.template_variables)
        is_answer = is_conversation(prompt)
        return _planned(streams, ids, is_answer, n, chosen_by, config, on_progress)
    if config.sampling.is_greedy and n > 1:
        raise ConfigError(
            "temperature is 0, so that all tries would be alike: ask for one such as 0.8"
        )

    def tried(prompt: Prompt, first: int, stop: int) -> list[GenerationResult]:
        ids = streams.loaded.encoder.encode(prompt, variables=config.template_variables)
        is_answer = is_conversation(prompt)
        openers = [
            partial(streams.open, ids, seeded_config, is_answer=is_answer)
            for seeded_config in seeded(config, first, stop)
        ]
        n_at_once = streams.loaded.model.capabilities.n_sequences
        return generate_many(openers, n_at_once, on_progress, first)

    return choose_of(tried, prompt, n, chosen_by)


def _planned(
    streams: Streams,
    ids: list[int],
    is_answer: bool,
    n: int,
    chooser: Planned,
    config: GenerationConfig,
    on_progress: OnResult | None,
) -> BestOf:
    """Returns the tries of a planned search and the best of them."""
    loaded = streams.loaded

    def complete(beginnings: list[list[int]], first: int) -> list[GenerationResult]:
        openers = [
            partial(
                streams.open,
                [*ids, *tokens],
                chooser.request(config, len(tokens)),
                is_answer=is_answer,
                n_begun=len(tokens),
            )
            for tokens in beginnings
        ]
        return generate_many(openers, loaded.model.capabilities.n_sequences, on_progress, first)

    most = max(1, min(config.max_new_tokens, loaded.context - len(ids) + 1))
    room = replace(config, max_new_tokens=most)
    ends = frozenset((*loaded.stop_token_ids, *config.stop_token_ids))
    return chooser.search(n, room, ends, complete)
