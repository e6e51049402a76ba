"""Options of `edgedec run --best-of`: several tries at one answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from edgedec.apps.console.option import option
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.generation import MAX_TRIES

_TEMPERATURE = 0.8
"""For tries where nobody asked for a temperature: greedy ones would be alike."""


class Choose(StrEnum):
    """How the best try is chosen."""

    VOTE = "vote"
    WEIGHTED = "weighted"
    LIKELIHOOD = "likelihood"
    TESTS = "tests"
    ITERATE = "iterate"
    TREE = "tree"


@dataclass(frozen=True, kw_only=True)
class TryOptions:
    """Options for several tries at one answer."""

    best_of: Annotated[
        int | None,
        option(
            "N",
            "Generate N answers side by side, and print the best (temperature 0.8 unless given).",
            min=1,
            max=MAX_TRIES,
        ),
    ] = None
    choose: Annotated[
        Choose | None,
        option(
            "NAME",
            "How --best-of chooses. vote (default): the most frequent answer. weighted: the "
            "same, weighted by likelihood. likelihood: the likeliest text. tests: code that passes "
            "--tests. iterate: tests, and later tries correct the best so far. tree: tests, and "
            "tries branch off failed ones.",
        ),
    ] = None
    tests: Annotated[
        Path | None, option("FILE.py", "Python code that fails unless an answer is right.")
    ] = None

    def __post_init__(self) -> None:
        if self.best_of is None and (self.choose is not None or self.tests is not None):
            raise ConfigError("--choose and --tests need --best-of N")
        needs_tests = self.choose in (Choose.TESTS, Choose.ITERATE, Choose.TREE)
        if needs_tests != (self.tests is not None):
            raise ConfigError(
                "--choose tests, iterate or tree, and --tests FILE.py go together: give both"
            )


def warm(
    config: GenerationConfig, is_stated: bool, temperature: float = _TEMPERATURE
) -> GenerationConfig:
    """Returns the request with a temperature, unless the user or the bundle stated one."""
    if is_stated or not config.sampling.is_greedy:
        return config
    return replace(config, sampling=replace(config.sampling, temperature=temperature))
