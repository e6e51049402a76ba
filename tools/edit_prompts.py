"""Makes prompts that ask to return given code with one change.

    python tools/edit_prompts.py human_eval.jsonl edits.jsonl --count 20 --seed 0

Reads one JSON object a line with `prompt` (the head of a Python function) and `canonical_solution`
(its body), as HumanEval has them. Writes one JSON object a line: `task_id`, `category` (`edits`),
`edit` (rename, constant, docstring or comparison), `prompt`, and as `prediction` the code as it is.
Each function gets the kind of change that is rarest so far among those it has room for. The same
input, count and seed give the same output.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
}
_NOUNS = ("value", "entry", "amount", "record", "subject", "element")


def rename(code: str, body: ast.FunctionDef, rng: random.Random) -> str | None:
    """Returns the wish to rename a variable; None if there is none to rename."""
    stored = {n.id for n in ast.walk(body) if isinstance(n, ast.Name) and _is_stored(n)}
    names = sorted(stored | {argument.arg for argument in body.args.args})
    taken = {node.id for node in ast.walk(body) if isinstance(node, ast.Name)} | set(names)
    if not names:
        return None
    old = rng.choice(names)
    new = next(noun for noun in _fresh(rng) if noun not in taken)
    return f"rename the variable `{old}` to `{new}` everywhere"


def constant(code: str, body: ast.FunctionDef, rng: random.Random) -> str | None:
    """Returns the wish to change a number; None if there is none that stands alone."""
    numbers = [n.value for n in ast.walk(body) if isinstance(n, ast.Constant)]
    whole = [n for n in numbers if isinstance(n, int) and not isinstance(n, bool)]
    single = sorted(n for n in whole if whole.count(n) == 1)
    if not single:
        return None
    old = rng.choice(single)
    return f"replace the number {old} by {old + rng.randint(2, 9)}"


def docstring(code: str, body: ast.FunctionDef, rng: random.Random) -> str | None:
    """Returns the wish for a one-line docstring in place of what is there."""
    words = body.name.replace("_", " ")
    return f'make its docstring the one line """{words.capitalize()}."""'


def comparison(code: str, body: ast.FunctionDef, rng: random.Random) -> str | None:
    """Returns the wish to change a comparison; None if there is none with a sign of its own."""
    signs = {
        ast.get_source_segment(code, node) or "": _COMPARISONS[type(node.ops[0])]
        for node in ast.walk(body)
        if isinstance(node, ast.Compare)
        and len(node.ops) == 1
        and type(node.ops[0]) in _COMPARISONS
    }
    lines = sorted(text for text in signs if "\n" not in text and code.count(text) == 1)
    if not lines:
        return None
    text = rng.choice(lines)
    old, new = signs[text]
    return f"in the comparison `{text}` use `{new}` instead of `{old}`"


EDITS: dict[str, Callable[[str, ast.FunctionDef, random.Random], str | None]] = {
    "rename": rename,
    "constant": constant,
    "docstring": docstring,
    "comparison": comparison,
}


def make_prompts(tasks: list[dict[str, Any]], count: int, seed: int) -> list[dict[str, str]]:
    """Returns ``count`` prompts over tasks drawn without repetition.

    Raises:
        ValueError: There are too few tasks with code that parses.
    """
    rng = random.Random(seed)
    prompts: list[dict[str, str]] = []
    for task in rng.sample(tasks, len(tasks)):
        if len(prompts) == count:
            break
        code = (task["prompt"] + task["canonical_solution"]).strip("\n")
        if (body := _function(code)) is not None:
            wishes = {kind: edit(code, body, rng) for kind, edit in EDITS.items()}
            n_made = Counter(prompt["edit"] for prompt in prompts)
            kind = min((k for k, wish in wishes.items() if wish), key=lambda k: n_made[k])
            name = f"edits/{len(prompts)}"
            text = (
                f"Return the following Python code with exactly one change: {wishes[kind]}. Keep "
                f"all else as it is, and write nothing but the code.\n\n```python\n{code}\n```"
            )
            fields = {"task_id": name, "category": "edits", "edit": kind, "prompt": text}
            prompts.append({**fields, "prediction": f"```python\n{code}\n```"})
    if len(prompts) < count:
        raise ValueError(f"got {len(prompts)} usable tasks, expected {count}: ask for fewer")
    return prompts


def _function(code: str) -> ast.FunctionDef | None:
    """Returns the last function of ``code``, which a task is about; None if it does not parse."""
    try:
        functions = [node for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)]
    except SyntaxError:
        return None
    return functions[-1] if functions else None


def _is_stored(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)


def _fresh(rng: random.Random) -> list[str]:
    nouns = rng.sample(_NOUNS, len(_NOUNS))
    return nouns + [f"{noun}_{i}" for i in range(2, 100) for noun in nouns]


def main(arguments: list[str] | None = None) -> None:
    """Reads, makes and writes prompts."""
    parser = argparse.ArgumentParser(description="Make prompts that ask for one change of code.")
    parser.add_argument("source", type=Path, help="JSONL with prompt and canonical_solution")
    parser.add_argument("output", type=Path, help="JSONL to write")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    lines = options.source.read_text(encoding="utf-8").split("\n")
    try:
        tasks = [json.loads(line) for line in lines if line.strip()]
        prompts = make_prompts(tasks, options.count, options.seed)
    except (ValueError, KeyError) as error:
        sys.exit(f"error: {options.source}: {error}")
    text = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts)
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
