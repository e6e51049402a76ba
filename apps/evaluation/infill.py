"""Task `infill`: what stood between a prefix and a suffix, judged by tests and by equality.

The model gets both through its own tokens for infilling. Where the problem's name says that a
single line is missing, the answer ends with that line; otherwise with any special token. An exact
match is equal up to white space at its end.

Source: arXiv:2207.14255 (the tasks); the Qwen2.5-Coder and StarCoder model cards (the formats).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgedec.apps.evaluation.programs import Limits, run_program
from edgedec.apps.evaluation.tasks import Judgement, Problem
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine import Engine

_SINGLE_LINE = "SingleLine"
_FORMATS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
)


@dataclass(frozen=True)
class InfillTokens:
    """Tokens that lead in the prefix, the suffix and the middle; stops: those that end it."""

    prefix: int
    suffix: int
    middle: int
    stops: tuple[int, ...]


class Infill:
    """Needs a model that was trained to fill in the middle."""

    keys = ("prompt", "suffix", "canonical_solution", "test", "entry_point")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns prefix and suffix between the tokens that ask for the middle."""
        tokens = find_infill_tokens(engine)
        encode = engine.tokenizer.encode
        return [
            tokens.prefix,
            *encode(problem["prompt"]),
            tokens.suffix,
            *encode(problem["suffix"]),
            tokens.middle,
        ]

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base`` with the stop tokens of the format; one line ends at its end."""
        stops = find_infill_tokens(engine).stops
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


def find_infill_tokens(engine: Engine) -> InfillTokens:
    """Returns the tokens with which the engine's model fills in.

    Raises:
        ConfigError: Its tokenizer has none.
    """
    tokenizer = engine.tokenizer

    def token(text: str) -> int | None:
        ids = tokenizer.encode_rendered(text, {})
        return ids[0] if len(ids) == 1 else None

    special = [token(text) for text in tokenizer.special_texts]
    for texts in _FORMATS:
        prefix, suffix, middle = map(token, texts)
        if prefix is not None and suffix is not None and middle is not None:
            stops = {one for one in special if one is not None} | {prefix, suffix, middle}
            return InfillTokens(prefix, suffix, middle, tuple(sorted(stops)))
    raise ConfigError(
        f"the model's tokenizer has no {_FORMATS[0][0]} or {_FORMATS[1][0]} token, which infill "
        "needs: evaluate a model that was trained to fill in the middle"
    )


def _is_single_line(problem: Problem) -> bool:
    return problem.name.startswith(_SINGLE_LINE)
