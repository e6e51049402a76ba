"""Several tries at one answer, of which one is chosen.

Sources: self-consistency (Wang et al., 2022) for `Vote`; perplexity consistency (Zhou et al., RPC,
2025) for `Weighted`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.search.answers import short_answer
from edgedec.runtime.text.prompt import Message, Prompt

N_ROUNDS = 4
"""Rounds of `Iterate`; a round's tries run side by side."""

Extract = Callable[[str], str | None]
"""From a text to the answer that it gives; texts of equal answers vote for the same one."""


@dataclass(frozen=True)
class BestChoice:
    """Which try is the best. scores: of all tries, higher for better. answers: that were voted on.

    Answers are empty where there was no vote.
    """

    index: int
    scores: tuple[float, ...]
    answers: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class BestOf:
    """What `Engine.best_of` returns: all tries, and which one was chosen.

    n_computed: tokens that were generated for them; tries may begin with those of others.
    """

    tries: tuple[GenerationResult, ...]
    choice: BestChoice
    n_computed: int

    @property
    def result(self) -> GenerationResult:
        """The chosen try."""
        return self.tries[self.choice.index]

    @property
    def text(self) -> str:
        """The chosen try's text."""
        return self.result.text


class Chooser(Protocol):
    """Chooses among tries."""

    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        """Returns the best of at least one try. Their results have log-probabilities."""


class Likelihood:
    """Chooses the try that the model finds likeliest."""

    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        """Returns the best of at least one try."""
        return _best([log_likelihood(result) for result in tries])


class Vote:
    """Chooses the answer that most tries give; of equals the likelier one.

    Tries that a limit of tokens cut off vote only if all are cut off.
    """

    def __init__(self, extract: Extract = short_answer) -> None:
        self._extract = extract

    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        """Returns the best of at least one try."""
        return _elected(tries, self._extract, [1.0] * len(tries))


class Weighted:
    """As `Vote`, but a try counts by the inverse of its perplexity, and equal tries count once."""

    def __init__(self, extract: Extract = short_answer) -> None:
        self._extract = extract

    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        """Returns the best of at least one try."""
        return _elected(tries, self._extract, self._weights(tries))

    def _weights(self, tries: Sequence[GenerationResult]) -> list[float]:
        logs = [log_likelihood(result) / max(1, result.n_new_tokens) for result in tries]
        largest = max(logs)
        seen: set[tuple[int, ...]] = set()
        weights = []
        for log, result in zip(logs, tries, strict=True):
            weights.append(0.0 if result.token_ids in seen else math.exp(log - largest))
            seen.add(result.token_ids)
        return weights


class ByTests:
    """Chooses the try that passes the largest share of tests; of equals the likelier one."""

    def __init__(self, share_passed: Callable[[str], float]) -> None:
        """share_passed: from a text to the share of tests that it passes, 0 to 1."""
        self._share_passed = share_passed

    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        """Returns the best of at least one try."""
        known: dict[str, float] = {}
        for result in tries:
            if result.text not in known:
                known[result.text] = self._share_passed(result.text)
        shares = tuple(known[result.text] for result in tries)
        ranked = [
            (share, log_likelihood(result)) for share, result in zip(shares, tries, strict=True)
        ]
        return BestChoice(ranked.index(max(ranked)), shares)


class Iterate(ByTests):
    """As `ByTests`, but in rounds: later ones are shown the best try so far, and its tests' words.

    Source: iterative agent decoding (Chakraborty et al., 2025), whose verifier are the tests here.
    """

    def __init__(
        self,
        verdict: Callable[[str], tuple[float, str]],
        ask_again: Callable[[str, str], Prompt],
    ) -> None:
        """Makes a chooser.

        Args:
            verdict: From a text to the share of tests that it passes, and what they say.
            ask_again: From a text, and what its tests say, to the prompt for better ones.
        """
        self._verdicts: dict[str, tuple[float, str]] = {}
        self._verdict = verdict
        self._ask_again = ask_again
        super().__init__(lambda text: self._tested(text)[0])

    def follow_up(self, tries: Sequence[GenerationResult]) -> Prompt | None:
        """Returns the prompt of the next round; None if a try passes all tests."""
        choice = self.choose(tries)
        if choice.scores[choice.index] >= 1:
            return None
        text = tries[choice.index].text
        return self._ask_again(text, self._tested(text)[1])

    def _tested(self, text: str) -> tuple[float, str]:
        if text not in self._verdicts:
            self._verdicts[text] = self._verdict(text)
        return self._verdicts[text]


def seeded(config: GenerationConfig, first: int, stop: int) -> list[GenerationConfig]:
    """Returns the requests of tries ``first`` to ``stop``, each with a seed of its own."""
    known = config.logprobs or 0  # what chooses reads the chosen tokens' log-probabilities
    return [replace(config, seed=config.seed + i, logprobs=known) for i in range(first, stop)]


def choose_of(
    tried: Callable[[Prompt, int, int], list[GenerationResult]],
    prompt: Prompt,
    n: int,
    chooser: Chooser,
) -> BestOf:
    """Returns ``n`` tries at ``prompt`` and the best of them.

    Args:
        tried: From a prompt, the first try's number and the number after the last one's, to tries.
    """
    tries: list[GenerationResult] = []
    for size in _rounds(n) if isinstance(chooser, Iterate) else [n]:
        question = chooser.follow_up(tries) if tries and isinstance(chooser, Iterate) else prompt
        if question is None:
            break
        tries += tried(question, len(tries), len(tries) + size)
    return BestOf(tuple(tries), chooser.choose(tries), sum(t.n_new_tokens for t in tries))


def _rounds(n: int) -> list[int]:
    """Returns the sizes of the rounds of ``n`` tries, the largest first."""
    n_rounds = min(n, N_ROUNDS)
    return [n // n_rounds + (i < n % n_rounds) for i in range(n_rounds)]


def corrected(question: Sequence[Message], text: str, message: str) -> list[Message]:
    """Returns a conversation that asks for a better text than one whose tests failed."""
    message_ = f"That fails its tests:\n{message}\nWrite all of it again, corrected."
    return [
        *question,
        {"role": "assistant", "content": text},
        {"role": "user", "content": message_},
    ]


def log_likelihood(result: GenerationResult) -> float:
    """Returns the log-probability of an output, a token that ended it included. Units: nats."""
    return math.fsum(token.logprob for token in result.logprobs)


def _best(scores: Sequence[float]) -> BestChoice:
    return BestChoice(scores.index(max(scores)), tuple(scores))


def _elected(
    tries: Sequence[GenerationResult], extract: Extract, weights: Sequence[float]
) -> BestChoice:
    """Returns the likeliest try of the answer with the most weight; no answer has none."""
    is_whole = [result.finish_reason == "stop" for result in tries]
    may_vote = is_whole if any(is_whole) else [True] * len(tries)
    answers = tuple(
        extract(result.text) if may else None for result, may in zip(tries, may_vote, strict=True)
    )
    totals: dict[str, float] = {}
    for answer, weight in zip(answers, weights, strict=True):
        if answer is not None:
            totals[answer] = totals.get(answer, 0.0) + weight
    scores = tuple(0.0 if answer is None else totals[answer] for answer in answers)
    ranked = [(score, log_likelihood(result)) for score, result in zip(scores, tries, strict=True)]
    return BestChoice(ranked.index(max(ranked)), scores, answers)


NAMED: dict[str, Callable[[], Chooser]] = {
    "likelihood": Likelihood,
    "vote": Vote,
    "weighted": Weighted,
}
"""Choosers that need nothing but the tries."""


def find_chooser(chooser: str | Chooser) -> Chooser:
    """Returns a chooser by its name, or as it is.

    Raises:
        ConfigError: There is none of that name.
    """
    if not isinstance(chooser, str):
        return chooser
    if chooser not in NAMED:
        raise ConfigError(f"chooser is {chooser!r}, expected {', '.join(NAMED)} or a Chooser")
    return NAMED[chooser]()
