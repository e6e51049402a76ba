"""Task `infill`: what stood between a prefix and a suffix, judged by tests and by equality.

The model gets both through its own tokens for infilling. Where the problem's name says that a
single line is missing, the answer ends with that line; otherwise with any special token. An exact
match is equal up to white space at its end.

Source: arXiv:2207.14255.
"""

from __future__ import annotations

from dataclasses import replace

from edgedec.apps.evaluation.tasks import Judgement, Problem
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.infill import FORMATS, InfillTokens, find_infill_tokens
from edgedec.system.sandbox.programs import Limits, run_program

_SINGLE_LINE = "SingleLine"


class Infill:
    """Needs a model that was trained to fill in the middle."""

    keys = ("prompt", "suffix", "canonical_solution", "test", "entry_point")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns prefix and suffix between the tokens that ask for the middle."""
        encode = engine.tokenizer.encode
        before, after = encode(problem["prompt"]), encode(problem["suffix"])
        return [*engine.encoder.opening, *_tokens_of(engine).prompt(before, after)]

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base`` with the stop tokens of the format; one line ends at its end."""
        stops = _tokens_of(engine).stops
        request = replace(base, stop_token_ids=(*base.stop_token_ids, *stops))
        return replace(request, stop=(*base.stop, "\n")) if _is_single_line(problem) else request

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns whether the tests pass with ``text`` in place, and whether it is the original."""
        middle = text + "\n" if _is_single_line(problem) else text
        program = (
            f"{problem['prompt']}{middle}{problem['suffix']}\n{problem['test']}\n"
            f"check({problem['entry_point']})\n"
        )
        verdict = run_program(program, self._limits)
        is_exact = middle.rstrip() == problem["canonical_solution"].rstrip()
        metrics = {"passed": float(verdict.is_passed), "exact": float(is_exact)}
        return Judgement(metrics, middle, verdict.reason)


def _tokens_of(engine: Engine) -> InfillTokens:
    """Returns the tokens of the engine's model; a ConfigError where it has none."""
    if tokens := find_infill_tokens(engine.tokenizer):
        return tokens
    raise ConfigError(
        f"the model's tokenizer has no {FORMATS[0][0]} or {FORMATS[1][0]} token, which infill "
        "needs: evaluate a model that was trained to fill in the middle"
    )


def _is_single_line(problem: Problem) -> bool:
    return problem.name.startswith(_SINGLE_LINE)
