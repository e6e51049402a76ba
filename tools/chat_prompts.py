"""Makes prompts for a chat model out of texts, for `edgedec train head --self N --prompts FILE`.

    python tools/chat_prompts.py prompts.jsonl --articles wiki.txt --problems gsm8k.jsonl
        --code $(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') --count 2400

Sources, each of which may be left out:

    --articles FILE    text with headings such as ` = Title = `, as WikiText has them: questions
                       about titles, and summaries of and questions about paragraphs
    --problems FILE    JSON objects with `question`, one a line, as GSM8K has them: the questions
    --code FOLDER      Python files: functions to write, by their signature and docstring
    --tasks FILE       JSON objects with `text`, `code` and `test_list`, one a line, as MBPP has
                       them: functions to write, by their signature, what they do, and examples
    --foreign FILE     sentences of another language, one a line: what is to be translated from
                       --language (German)

Writes one JSON object a line: `category` (code, task, problem, title, writing, summary, passage or
translation) and `prompt`. Prompts of like length come together, so that answering 24 at a time pads
little. What a model answers belongs to nobody's text; the prompts keep the
licences of their sources. The same input, count and seed give the same output.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

_LEFT_OUT = {"test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__"}
_MIN_LETTERS, _MIN_PASSAGE = 60, 90
_UNKNOWN = "<unk>"
_FRAME = 100  # letters of a prompt around a paragraph, at most
_HEADING = re.compile(r"^ ?= ([^=].*[^=]) = *$")
_SIGNS = (
    (" @-@ ", "-"),
    (" @,@ ", ","),
    (" @.@ ", "."),
    (" 's", "'s"),
    (" n't", "n't"),
    ("( ", "("),
    (" )", ")"),
)
_ABOUT = (
    "What is {}?",
    "Who or what is {}?",
    "When and where did {} happen?",
    "Explain {} to a child.",
    "Tell me three facts about {}.",
    "Why is {} important?",
    "What is the difference between {} and {}?",
)
_WRITE = (
    "Write a short story about {}.",
    "Write a persuasive email about {} to a friend. Please be concise.",
    "Write an outline of a blog post that compares {} and {}.",
    "Write a poem about {}.",
    "Propose four catchy headlines for an article about {}.",
    "Imagine you are a tour guide. Describe {} to your visitors.",
    "Pretend to be a teacher, and answer a student who asks why they should learn about {}.",
    "Write a Python program that prints a table with facts about {}.",
    "Write a product description inspired by {}, and a counter-argument to it.",
    "Discuss the pros and cons of {}. Use examples to support your argument.",
)
_WISH = re.compile(r"^Write a (python )?function (to|that|which) ", re.IGNORECASE)
_EXAMPLE = re.compile(r"assert ((\w+)\(.*\)) == (.*)$")
_EXAMPLES = (
    ('    """ {}\n', "    >>> {}\n    {}\n", '    """\n'),
    ("    '''\n    {}\n", "    {} ➞ {}\n", "    '''\n"),
    ('    """\n    {}\n    For example:\n', "    {} == {}\n", '    """\n'),
    ('    """{}\n\n    Examples:\n', "    * {} => {}\n", '    """\n'),
)
"""How docstrings are written: what a function does, each example, and the end."""
_SUM_UP = ("Summarize: {}", "Sum up the following text in two sentences. {}")
_ASK = (
    "{}\n\nWhat is said here about {}?",
    "{}\n\nAnswer by the text above: who or what is {}?",
    "Read this text, and name everybody and everything in it as a list.\n\n{}",
    "Correct this text, and write nothing else: {}",
)


def code_prompts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields functions to write: signature and docstring, as a file would begin them."""
    for path in sorted(folder.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(folder).parts[:-1]):
            for function in _functions(path.read_bytes()):
                doc = ast.get_docstring(function)
                if doc and not function.name.startswith("__"):
                    text = "\n    ".join(doc.splitlines())
                    head = f"def {function.name}({ast.unparse(function.args)}):"
                    yield "code", f'{head}\n    """{text}\n    """'


def _functions(source: bytes) -> list[ast.FunctionDef]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def task_prompts(path: Path, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yields functions to write, with one to three examples of what they return."""
    for line in path.read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        functions = {function.name: function for function in _functions(task["code"].encode())}
        examples = [found for test in task["test_list"] if (found := _EXAMPLE.match(test))]
        function = functions.get(examples[0][2]) if examples else None
        if function is not None:
            before, example, after = rng.choice(_EXAMPLES)
            shown = examples[: rng.randrange(1, 4)]
            examples = "".join(example.format(found[1], found[3]) for found in shown)
            text = _WISH.sub("", task["text"].strip())
            head = f"def {function.name}({ast.unparse(function.args)}):\n"
            yield "task", head + before.format(text[:1].upper() + text[1:]) + examples + after


def problem_prompts(path: Path) -> Iterator[tuple[str, str]]:
    """Yields questions of problems."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield "problem", json.loads(line)["question"]


def foreign_prompts(path: Path, language: str) -> Iterator[tuple[str, str]]:
    """Yields sentences to translate."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield "translation", f"Translate {language} to English: {line.strip()}"


def article_prompts(path: Path, letters: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yields questions about titles, and wishes about paragraphs, cut to ``letters``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    titles = [found[1] for line in lines if (found := _HEADING.match(line))]
    titles = [_plain(title) for title in titles] or ["the world"]
    for kind, forms in (("title", _ABOUT), ("writing", _WRITE)):
        for title in titles:
            yield from ((kind, form.format(title, rng.choice(titles))) for form in forms)
    title = titles[0]
    for line in lines:
        if found := _HEADING.match(line):
            title = _plain(found[1])
        elif not line.startswith(" ="):
            text = _sentences(_plain(line), letters)
            if len(text) > _MIN_PASSAGE:
                yield "summary", rng.choice(_SUM_UP).format(text)
                yield "passage", rng.choice(_ASK).format(text, title)


def _plain(line: str) -> str:
    """Returns a line without the signs of tokenization."""
    for sign, plain in _SIGNS:
        line = line.replace(sign, plain)
    return re.sub(r" ([,.;:?!])", r"\1", line).strip()


def _sentences(text: str, letters: int) -> str:
    """Returns as many whole sentences as ``letters`` have room for, none with an unknown word."""
    cut = " ".join(s for s in re.split(r"(?<=[.!?]) ", text) if _UNKNOWN not in s)[:letters]
    return cut if len(cut) < letters or ". " not in cut else cut[: cut.rindex(". ") + 1]


def chosen(
    found: list[tuple[str, str]], letters: int, count: int, rng: random.Random
) -> list[dict[str, str]]:
    """Returns ``count`` of the prompts, of each kind its share as far as there are so many.

    letters: most of a prompt.
    """
    by_kind: dict[str, list[str]] = {kind: [] for kind in SHARES}
    for kind, prompt in dict.fromkeys(found):
        is_fit = _MIN_LETTERS * (kind == "code") < len(prompt) <= letters
        if is_fit and _UNKNOWN not in prompt:
            by_kind[kind].append(prompt)
    whole = sum(share for kind, share in SHARES.items() if by_kind[kind])
    made = []
    for kind, prompts in by_kind.items():
        rng.shuffle(prompts)
        kept = prompts[: round(count * SHARES[kind] / whole)]
        made += [{"category": kind, "prompt": prompt} for prompt in kept]
    return _side_by_side(made, rng)


def _side_by_side(prompts: list[dict[str, str]], rng: random.Random) -> list[dict[str, str]]:
    """Returns the prompts in groups of like length, the groups in any order."""
    ranked = sorted(prompts, key=lambda prompt: len(prompt["prompt"]))
    groups = [ranked[i : i + _AT_ONCE] for i in range(0, len(ranked), _AT_ONCE)]
    rng.shuffle(groups)
    return [prompt for group in groups for prompt in group]


_AT_ONCE = 24
SHARES = {
    "code": 0.3,
    "task": 0.3,
    "problem": 0.12,
    "title": 0.13,
    "writing": 0.12,
    "summary": 0.11,
    "passage": 0.12,
    "translation": 0.1,
}
"""How many of the prompts are of each kind."""


def main(arguments: list[str] | None = None) -> None:
    """Reads texts, makes and writes prompts."""
    parser = argparse.ArgumentParser(description="Make prompts for a chat model out of texts.")
    parser.add_argument("output", type=Path, help="JSONL to write")
    parser.add_argument("--articles", type=Path, help="text with headings, as WikiText")
    parser.add_argument("--problems", type=Path, help="JSONL with `question`, as GSM8K")
    parser.add_argument("--code", type=Path, help="folder of Python files")
    parser.add_argument("--tasks", type=Path, help="JSONL with `text` and examples, as MBPP")
    parser.add_argument("--foreign", type=Path, help="text of another language, a sentence a line")
    parser.add_argument("--language", default="German", help="of --foreign")
    parser.add_argument("--letters", type=int, default=700, help="most letters of a prompt")
    parser.add_argument("--count", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    rng = random.Random(given.seed)
    readers: list[tuple[Path | None, Callable[[Path], Iterator[tuple[str, str]]]]] = [
        (given.articles, lambda path: article_prompts(path, given.letters - _FRAME, rng)),
        (given.problems, problem_prompts),
        (given.code, code_prompts),
        (given.tasks, lambda path: task_prompts(path, rng)),
        (given.foreign, lambda path: foreign_prompts(path, given.language)),
    ]
    try:
        found = [prompt for path, read in readers if path for prompt in read(path)]
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"error: {error}")
    if not found:
        sys.exit(
            "error: no texts to make prompts of, expected --articles, --problems, --code, "
            "--tasks or --foreign"
        )
    made = chosen(found, given.letters, given.count, rng)
    text = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in made)
    given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
