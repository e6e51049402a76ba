"""`edgedec run --best-of`: makes several tries at one answer and prints the best one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from edgedec.apps.console.progress import ProgressBars
from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.apps.programs.assertions import one_by_one
from edgedec.apps.programs.contained import check_programs_run
from edgedec.apps.run.tries import Choose, TryOptions
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.search.answers import code_of
from edgedec.runtime.search.best_of import (
    BestOf,
    ByTests,
    Chooser,
    Iterate,
    corrected,
    find_chooser,
)
from edgedec.runtime.search.planned import Planned
from edgedec.runtime.text.prompt import Prompt
from edgedec.system.sandbox.programs import Limits, run_program


def write_best(
    engine: Engine,
    prompt: Prompt,
    question: str,
    config: GenerationConfig,
    tries: TryOptions,
    bars: ProgressBars,
    is_json: bool,
) -> None:
    """Prints the best of the tries, and what came of all of them."""
    assert tries.best_of is not None
    n, n_done = tries.best_of, 0
    chooser = make_chooser(tries, engine, question)
    bars.report("try", 0, n)

    def on_progress(place: int, result: object) -> None:
        nonlocal n_done
        n_done += 1
        bars.report("try", n_done, n)

    best = engine.best_of(prompt, n, chooser, config, on_progress)
    bars.close()
    if is_json:
        print_json(document(best))
        return
    write_out(best.text.rstrip("\n") + "\n")
    note(_summary(best, str(tries.choose or Choose.VOTE)))


def make_chooser(tries: TryOptions, engine: Engine, question: str) -> Chooser:
    """Returns what chooses.

    Raises:
        EdgedecError: The tests cannot be read, or programs cannot be held on this machine.
    """
    if tries.choose is Choose.ITERATE and not engine.has_chat_template:
        raise ConfigError(f"--choose {tries.choose} asks in a chat: this model has no template")
    if tries.tests is not None:
        verdict = _Tests(tries.tests)
        if tries.choose is Choose.TESTS:
            return ByTests(lambda text: verdict(text)[0])
        if tries.choose is Choose.TREE:
            return Planned(verdict.share)
        return Iterate(verdict, partial(corrected, [{"role": "user", "content": question}]))
    return find_chooser(str(tries.choose or Choose.VOTE))


class _Tests:
    """Whether the code of a text passes tests, and what they say."""

    def __init__(self, path: Path) -> None:
        try:
            self._tests = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}; expected Python code") from None
        self._alone = one_by_one(self._tests)
        self._limits = Limits()
        check_programs_run(self._limits)

    def __call__(self, text: str) -> tuple[float, str]:
        return self._run(text, self._tests)

    def share(self, text: str) -> float:
        """Returns the share of the tests' assertions that the code passes, each by itself."""
        return sum(self._run(text, test)[0] for test in self._alone) / len(self._alone)

    def _run(self, text: str, tests: str) -> tuple[float, str]:
        verdict = run_program(f"{code_of(text)}\n{tests}\n", self._limits)
        return float(verdict.is_passed), verdict.reason or ""


def document(best: BestOf) -> dict[str, Any]:
    """Returns what `--json` prints."""
    answers = best.choice.answers or (None,) * len(best.tries)
    return {
        **best.result.to_dict(),
        "chosen": best.choice.index,
        "tries": [
            {
                "text": result.text,
                "n_new_tokens": result.n_new_tokens,
                "score": score,
                "answer": answer,
            }
            for result, score, answer in zip(best.tries, best.choice.scores, answers, strict=True)
        ],
    }


def _summary(best: BestOf, choose: str) -> str:
    choice = best.choice
    score = choice.scores[choice.index]
    what = f"try {choice.index + 1} of {len(best.tries)} by {choose}"
    return f"{what}, score {score:.3g}; {best.n_computed} tokens in all"
