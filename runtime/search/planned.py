"""Answers that a planned search completes, of which tests choose one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sampling.logprobs import TokenLogprob
from edgedec.runtime.search.best_of import BestOf, ByTests
from edgedec.runtime.search.token_plan import Beginning, Completion, PlanConfig, TokenPlan

AT_ONCE = 4
"""Beginnings that are completed side by side."""

Complete = Callable[[list[list[int]], int], list[GenerationResult]]
"""Goes on from beginnings. Called with them and the number of tries before; results have the whole
text, and the new tokens alone."""


class Planned(ByTests):
    """As `ByTests`, but each try goes on from a beginning that promises most.

    The first try is greedy decoding's. Others depart from earlier ones where the model was unsure
    and the tests were not passed, as `TokenPlan` decides. The search ends when a try passes all
    tests.
    """

    def __init__(
        self,
        share_passed: Callable[[str], float],
        config: PlanConfig | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """Makes a chooser.

        Args:
            share_passed: From a text to the share of tests that it passes, 0 to 1.
            config: How the search goes on.
            max_tokens: No try begins once so many tokens are computed.
        """
        super().__init__(share_passed)
        self.config = PlanConfig() if config is None else config
        self._max_tokens = max_tokens

    def request(self, config: GenerationConfig, n_begun: int) -> GenerationConfig:
        """Returns the request for what follows a beginning of ``n_begun`` tokens."""
        return replace(
            config,
            sampling=replace(config.sampling, temperature=0.0),
            logprobs=max(self.config.n_options, config.logprobs or 0),
            max_new_tokens=config.max_new_tokens - n_begun,
        )

    def search(
        self, n: int, config: GenerationConfig, ends: frozenset[int], complete: Complete
    ) -> BestOf:
        """Returns at most ``n`` tries and the best of them.

        ends: tokens that end a text.

        Raises:
            ConfigError: The request has a grammar, a prefix or a budget of thoughts.
        """
        has_budget = config.thought_budget is not None
        if config.prefix or config.constraint is not None or has_budget:
            raise ConfigError(
                "a planned search begins texts in the middle: leave out grammars, the prefix and "
                "thought_budget, or choose among tries by tests"
            )
        plan = TokenPlan(self.config, ends, config.max_new_tokens)
        tries, n_computed = list[GenerationResult](), 0
        while len(tries) < n and not (self._max_tokens and n_computed >= self._max_tokens):
            places = _next(plan, min(AT_ONCE, n - len(tries)))
            if not places:
                break
            made = complete([place.tokens for place in places], len(tries))
            n_computed += sum(result.n_new_tokens for result in made)
            tries += [
                _whole(place, completion) for place, completion in zip(places, made, strict=True)
            ]
            choice = self.choose(tries)
            for i, place in enumerate(places, len(tries) - len(places)):
                options = tuple(token.top for token in tries[i].logprobs)
                plan.learn(place, Completion(tries[i].token_ids, options, choice.scores[i]))
            if choice.scores[choice.index] >= 1:
                break
        return BestOf(tuple(tries), self.choose(tries), n_computed)


def _next(plan: TokenPlan, n: int) -> list[Beginning]:
    """Returns up to ``n`` beginnings to complete side by side."""
    items = (plan.next() for _ in range(n))
    return [place for place in items if place is not None]


def _whole(place: Beginning, result: GenerationResult) -> GenerationResult:
    """Returns the whole text of a try, its beginning included."""
    before = [node for node in place.way()[1:] if isinstance(node, Beginning)]
    return replace(
        result,
        token_ids=(*(node.token for node in before), *result.token_ids),
        origins=(*("plan" for _ in before), *result.origins),
        logprobs=(
            *(TokenLogprob(node.token, node.log_prob, ()) for node in before),
            *result.logprobs,
        ),
    )
