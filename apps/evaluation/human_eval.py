"""Task `human_eval`: functions to write, judged by their tests; pass@1 of one answer each.

In a chat, an instruct model is asked for a whole Python script and its answer is begun for it, up
to the opening of the code, so that the code is all there is to extract: it ends at the closing
fence, or where the script begins to call or to test what it defined, for a wrong test of its own
says nothing about the function. Without a template, the model continues the prompt, and its text
ends where a function does: at the next definition, class, comment, condition or print that is not
indented.

Source: EvalPlus (evalplus/provider/utility.py, Apache-2.0) for the chat; Codex, arXiv:2107.03374,
section 2.1 and appendix A, for the stop texts.
"""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import replace
from textwrap import dedent

from edgedec.apps.evaluation.tasks import Judgement, Problem, encode_question
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.search.best_of import corrected
from edgedec.system.sandbox.programs import Limits, run_program

_QUESTION = """\
Please provide a self-contained Python script that solves the following problem in a markdown code \
block:
```
{prompt}
```
"""
_ANSWER_START = """\
Below is a Python script with a self-contained function that solves the problem and passes \
corresponding tests:
```python
"""
_AFTER_SCRIPT = (
    "\n```\n", "\nif __name__", "\ndef main(", "\nprint(", "\nassert ", "\n# Test",
)  # fmt: skip
_AFTER_FUNCTION = ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint")


_FENCE = re.compile(r"^[ \t]*(?:[-*>] ?|\d+\. )?(?:```|~~~).*(?:\n|\Z)", re.MULTILINE)
_FUTURE = re.compile(r"^from __future__ import [\w, ]+$", re.MULTILINE)
_TOP = re.compile(r"(?:import|from|def|class|async)\s|@|\w+\s*=")
_MAX_LINES = 200  # of an answer that are looked at where it is no program
_EXAMPLES = (
    re.compile(r"^[ \t]*>>>.*\n(?:(?![ \t]*(?:>>>|\"\"\"|'''|$)).*\n)*", re.MULTILINE),
    re.compile(
        r"^[ \t]*(?:for )?examples?\b.*\n(?:(?![ \t]*(?:\"\"\"|''')).*\n)*",
        re.MULTILINE | re.IGNORECASE,
    ),
)
"""Lines of an interpreter with what it answers, and all behind a line that announces examples."""


class HumanEval:
    """is_chat: the prompt goes into the chat template."""

    keys = ("prompt", "test", "entry_point")

    def __init__(self, is_chat: bool, limits: Limits) -> None:
        self._is_chat = is_chat
        self._limits = limits

    def encode(self, engine: Engine, problem: Problem) -> list[int]:
        """Returns the token ids of a problem, in a chat with the answer begun."""
        if not self._is_chat:
            return engine.encode(problem["prompt"])
        question = _QUESTION.format(prompt=problem["prompt"].strip())
        return encode_question(engine, question, _ANSWER_START)

    def encode_again(self, engine: Engine, problem: Problem, text: str, message: str) -> list[int]:
        """Returns the token ids of a chat in which an answer has failed, with the next one begun.

        Raises:
            ConfigError: The model continues prompts.
        """
        if not self._is_chat:
            raise ConfigError("asking again needs a chat: leave out --raw, or use another chooser")
        question = _QUESTION.format(prompt=problem["prompt"].strip())
        messages = [{"role": "user", "content": question}]
        ids = engine.encode(corrected(messages, f"{_ANSWER_START}{text}\n```", message))
        return ids + engine.tokenizer.encode(_ANSWER_START)

    def request(self, engine: Engine, problem: Problem, base: GenerationConfig) -> GenerationConfig:
        """Returns ``base`` with the stop texts that end a function or a script."""
        stop = _AFTER_SCRIPT if self._is_chat else _AFTER_FUNCTION
        return replace(base, stop=(*base.stop, *stop))

    def judge(self, problem: Problem, text: str) -> Judgement:
        """Returns whether the problem's tests pass with the code in ``text``."""
        verdict = run_program(self.program(problem, text), self._limits)
        return Judgement({"passed": float(verdict.is_passed)}, text, verdict.reason)

    def program(self, problem: Problem, text: str) -> str:
        """Returns the program that fails unless the answer passes the problem's tests."""
        name, prompt = problem["entry_point"], problem["prompt"]
        if self._is_chat:
            text = _code_of(text, name)
        if self._is_chat and _definition(text, name):
            # What the prompt imports and defines first is there, too, though the answer may
            # leave it out.
            definition = _definition(prompt, name)
            solution = prompt[: definition.start() if definition else 0] + text
        else:
            solution = prompt + text
        future = "".join(line + "\n" for line in _FUTURE.findall(solution))  # have to come first
        solution = _FUTURE.sub("", solution)
        return f"{future}{solution}\n{problem['test']}\ncheck({name})\n"


def _code_of(text: str, name: str) -> str:
    """Returns the code in the rest of an answer whose block of code was opened for it.

    A model may open the block again, indent it, write prose around the code, and define helpers in
    blocks of their own before the function.
    """
    as_written = _FENCE.split(text)
    sections = [dedent(section) for section in as_written]
    defined = [i for i, section in enumerate(sections) if _definition(section, name)]
    if not defined:
        return as_written[0]  # the body alone, maybe
    last = defined[0]
    helpers = [section for section in sections[:last] if _defines(section)]
    return "\n".join([*helpers, _parsed(sections[last], name)])


def _definition(code: str, name: str) -> re.Match[str] | None:
    return re.search(rf"^def\s+{re.escape(name)}\b", code, re.MULTILINE)


def _tree(code: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _defines(code: str) -> bool:
    """Returns whether ``code`` is a program that names something, and no prose."""
    tree = _tree(code)
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    return tree is not None and any(isinstance(node, kinds) for node in tree.body)


def _parsed(code: str, name: str) -> str:
    """Returns the lines of ``code`` around the function that are a program, without prose.

    Source: EvalPlus ``evalplus/sanitize.py`` (the longest code, Apache-2.0).
    """
    if _tree(code) is not None:
        return code
    lines = code.splitlines(keepends=True)[:_MAX_LINES]
    starts = [i for i, line in enumerate(lines) if _TOP.match(line)]
    for end in range(len(lines), 0, -1):
        for start in starts:
            part = "".join(lines[start:end])
            if start < end and _definition(part, name) and _tree(part) is not None:
                return part
    return code
