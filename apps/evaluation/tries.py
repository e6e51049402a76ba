"""Settings of `edgedec eval` that take several tries at each problem and choose one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import MAX_TRIES
from edgedec.runtime.search.answers import final_number
from edgedec.runtime.search.best_of import (
    ByTests,
    Chooser,
    Iterate,
    Vote,
    Weighted,
    find_chooser,
)
from edgedec.runtime.search.planned import Planned
from edgedec.runtime.text.prompt import Prompt

BEST_OF = "best-of"
TESTS = "tests"
ITERATE = "iterate"
TREE = "tree"
NEED_TESTS = (TESTS, ITERATE, TREE)
_VOTES: dict[str, Callable[[], Chooser]] = {
    "vote": lambda: Vote(_number),
    "weighted": lambda: Weighted(_number),
}
_CHOOSERS = (*_VOTES, "likelihood", *NEED_TESTS)
_EXPECTED = f"{BEST_OF}:n=8,choose=vote,temperature=0.8"


@dataclass(frozen=True)
class Tries:
    """choose: the name of a chooser; tests, iterate, tree: half of a problem's own tests.

    temperature: of the tries, but for tree, whose tries are greedy.
    """

    n: int = 8
    choose: str = "vote"
    temperature: float = 0.8

    def __post_init__(self) -> None:
        is_some = 1 <= self.n <= MAX_TRIES
        if not is_some or self.temperature <= 0 or self.choose not in _CHOOSERS:
            raise ConfigError(
                f"{self} makes no sense: n is 1 to {MAX_TRIES}, temperature above 0, choose one "
                f"of {', '.join(_CHOOSERS)}"
            )

    def __str__(self) -> str:
        label = f"{BEST_OF}:n={self.n},choose={self.choose}"
        return label if self.choose == TREE else f"{label},temperature={self.temperature:g}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the setting written as ``best-of:n=8,choose=vote,temperature=0.8``.

        Raises:
            ConfigError: The text is no such setting.
        """
        name, _, rest = text.partition(":")
        fields = dict(pair.partition("=")[::2] for pair in rest.split(",") if pair)
        makers: dict[str, Callable[[str], object]] = {"n": int, "choose": str, "temperature": float}
        try:
            values = {key: makers[key](value) for key, value in fields.items()}
        except (KeyError, ValueError):
            name = ""
        if name != BEST_OF:
            raise ConfigError(f"got the setting {text!r}, expected {_EXPECTED}")
        return cls(**values)  # type: ignore[arg-type]

    @classmethod
    def of(cls, label: str) -> Self | None:
        """Returns what the label of a setting says; None if it is of another kind."""
        return cls.parse(label) if label.partition(":")[0] == BEST_OF else None

    def request(self, base: GenerationConfig) -> GenerationConfig:
        """Returns what each try asks for."""
        return replace(base, sampling=replace(base.sampling, temperature=self.temperature))

    def chooser(self, tested: Tested | None) -> Chooser:
        """Returns what chooses. tested: half of the problem's tests, if it has any.

        Raises:
            ConfigError: The problem has no tests.
        """
        if self.choose in NEED_TESTS:
            if tested is None:
                raise ConfigError(f"{self} needs a task with tests, such as human_eval")
            if self.choose == ITERATE:
                return Iterate(tested.verdict, tested.ask_again)
            if self.choose == TREE:
                return Planned(tested.share)
            return ByTests(lambda text: tested.verdict(text)[0])
        return _VOTES[self.choose]() if self.choose in _VOTES else find_chooser(self.choose)


@dataclass(frozen=True)
class Tested:
    """A problem with tests.

    verdict: from a text to whether it passes half of the tests, 0 or 1, and what they say.
    ask_again: from both to the prompt for a better text. share: from a text to the share of these
    tests that it passes.
    """

    verdict: Callable[[str], tuple[float, str]]
    ask_again: Callable[[str, str], Prompt]
    share: Callable[[str], float]


def parse_tries(counts: str, choosers: str, temperature: float) -> list[Tries]:
    """Returns every way to choose, of each number of tries.

    Raises:
        ConfigError: A number is none, or there is no such chooser.
    """
    try:
        numbers = [int(text) for text in counts.split(",")]
    except ValueError:
        raise ConfigError(f"--best-of is {counts!r}, expected numbers such as 8 or 4,8") from None
    names = [name.strip() for name in choosers.split(",")]
    return [Tries(n, choose, temperature) for n in numbers for choose in names]


def _number(text: str) -> str | None:
    """Returns the final number; unlike in a chat, a text without one answers nothing."""
    number = final_number(text)
    return None if number is None else format(number.normalize(), "f")
