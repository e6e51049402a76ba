"""What a bundle's model says to prompts, many at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import tee

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.generation import BATCH
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.many import in_order
from edgedec.runtime.methods.method_parts import PLAIN
from edgedec.runtime.text.infill import find_infill_tokens
from edgedec.training.features.feature_reader import WINDOW

_WRITTEN = 192


@dataclass(frozen=True)
class OwnAnswers:
    """The target model of a bundle, as one that answers.

    n_at_once: answers that are written side by side, each as it would be alone. is_over: ends
    answers where they are.
    """

    engine: Engine
    temperature: float
    n_at_once: int
    is_over: Callable[[], bool]

    def __call__(
        self, prompts: Iterable[list[int]], first: int = 0
    ) -> Generator[list[int], None, None]:
        """Yields the ends of prompts, each with its answer behind, in their order.

        first: number of the first prompt. An answer depends on its prompt and its number alone.
        """
        marks = find_infill_tokens(self.engine.tokenizer)
        request = partial(self._request, _n_new(self.engine.context), marks.stops if marks else ())
        ends, ends_again = tee(prompt_end(prompt, self.engine.context) for prompt in prompts)
        openers = (
            partial(self.engine.stream, end, request(seed))
            for seed, end in enumerate(ends_again, first)
        )
        with closing(in_order(openers, self.n_at_once, self.is_over)) as results:
            for end, result in zip(ends, results, strict=False):
                yield [*end, *result.token_ids]

    def _request(self, n_new: int, stops: tuple[int, ...], seed: int) -> GenerationConfig:
        return GenerationConfig(
            max_new_tokens=n_new,
            sampling=SamplingConfig(temperature=self.temperature),
            seed=seed,
            method=PLAIN,
            priority=BATCH,
            stop_token_ids=stops,
        )


def prompt_end(prompt: list[int], context: int) -> list[int]:
    """Returns what a model reads of a prompt, which leaves room for its answer."""
    return prompt[_n_new(context) - min(WINDOW, context) :]


def _n_new(context: int) -> int:
    return min(_WRITTEN, min(WINDOW, context) // 2)
