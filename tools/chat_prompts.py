"""Makes prompts for a chat model out of texts, for `edgedec train head --self N --prompts FILE`.

    python tools/chat_prompts.py prompts.jsonl --articles wiki.txt --problems gsm8k.jsonl
        --code $(python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))') --count 2400
    python tools/chat_prompts.py prompts.jsonl --fill src --programs vendor --foreign de.txt

Sources, each of which may be left out:

    --articles FILE    text with headings such as ` = Title = `, as WikiText has them: questions
                       about titles, summaries of and questions about paragraphs, JSON objects
    --problems FILE    JSON objects with `question`, one a line, as GSM8K has them: the questions
    --code FOLDER      Python files: functions to write, by their signature and docstring
    --tasks FILE       JSON objects with `text`, `code` and `test_list`, one a line, as MBPP has
                       them: functions to write, by their signature, what they do, and examples
    --foreign FILE     sentences of another language, one a line: what is to be translated from
                       --language (German)
    --fill FOLDER      program text of any language: a line or a few that are to be filled in
    --programs FOLDER  program text of any language: functions to explain, test or translate

--code, --fill, --programs, --foreign and --language may be repeated; each --foreign takes the
--language at its place.

Writes one JSON object a line: `category` (a key of `SHARES`), `prompt`, and `suffix` where a text
is to be filled in. Prompts of like length come together, so that answering 24 at a time pads
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
from collections.abc import Iterator
from pathlib import Path

_PROGRAMS = {
    ".c": "C",
    ".cpp": "C++",
    ".go": "Go",
    ".java": "Java",
    ".js": "JavaScript",
    ".mjs": "JavaScript",
    ".pl": "Perl",
    ".pm": "Perl",
    ".py": "Python",
    ".rs": "Rust",
    ".sh": "Bash",
    ".ts": "TypeScript",
    ".zig": "Zig",
}
_MAX_PROGRAM_BYTES = 200_000
_MIN_HOLE, _MAX_HOLE_LINES = 8, 4
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
_OF_PROGRAMS = (
    "What does this {language} code do?\n\n{code}",
    "Explain this code line by line.\n\n{code}",
    "Find a bug in this {language} code, and write the corrected code.\n\n{code}",
    "Write a test for this {language} code.\n\n{code}",
    "Translate this {language} code to {other}.\n\n{code}",
    "Add comments to this code, and change nothing else.\n\n{code}",
    "Write this {language} code again with better names.\n\n{code}",
    "{code}\n\nComplete this {language} code.",
)
_OBJECTS = (
    'Describe {} as a JSON object with the keys "name", "kind", "year" and "facts", a list.',
    "List five things about {} as a JSON array of objects with `title` and `text`. JSON only.",
    'Answer with JSON alone: {{"topic": "{}", "summary": ..., "keywords": [...]}}',
    "Write a JSON schema of a record about {}.",
    "Make a configuration file in JSON for a program about {}.",
)

Prompt = tuple[str, str, str | None]
"""What kind it is of, its text, and what stands behind the text to fill in."""


def fill_prompts(folder: Path, letters: int, rng: random.Random) -> Iterator[Prompt]:
    """Yields places in programs at which some letters of a line, or some lines, are missing."""
    for _, text in _programs(folder):
        lines = text.splitlines(keepends=True)
        for _ in range(1 + len(lines) // 80):
            first = rng.randrange(len(lines))
            hole = "".join(lines[first : first + rng.randrange(1, _MAX_HOLE_LINES + 1)])
            if len(hole.strip()) >= _MIN_HOLE:
                n_typed = rng.choice((0, rng.randrange(max(1, hole.find("\n")))))
                start = sum(map(len, lines[:first]))
                before, after = text[: start + n_typed], text[start + len(hole) :]
                n_before = rng.randrange(letters // 3, letters)
                yield "fill", _last_lines(before, n_before), after[: letters - n_before]


def _last_lines(text: str, letters: int) -> str:
    """Returns the end of a text, which begins with a line of it."""
    end = text[-letters:]
    return end if len(end) == len(text) else end[end.find("\n") + 1 :]


def program_prompts(folder: Path, letters: int, rng: random.Random) -> Iterator[Prompt]:
    """Yields wishes about a part of a program."""
    languages = sorted(set(_PROGRAMS.values()))
    for language, text in _programs(folder):
        lines = text.splitlines(keepends=True)
        for _ in range(1 + len(lines) // 200):
            first = rng.randrange(len(lines))
            code = "".join(lines[first : first + 40])[: letters - _FRAME].rpartition("\n")[0]
            fields = {"language": language, "other": rng.choice(languages), "code": code}
            yield "program", rng.choice(_OF_PROGRAMS).format(**fields), None


def _programs(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields language and text of the programs below a folder, no small or squeezed ones."""
    for path in sorted(folder.rglob("*")):
        language = _PROGRAMS.get(path.suffix)
        is_file = language and path.is_file() and path.stat().st_size < _MAX_PROGRAM_BYTES
        if is_file and _LEFT_OUT.isdisjoint(path.relative_to(folder).parts[:-1]):
            text = path.read_text(encoding="utf-8", errors="replace")
            n_lines = text.count("\n")
            if n_lines > 20 and len(text) < 80 * n_lines and "\ufffd" not in text:
                yield language or "", text


def code_prompts(folder: Path) -> Iterator[Prompt]:
    """Yields functions to write: signature and docstring, as a file would begin them."""
    for path in sorted(folder.rglob("*.py")):
        if _LEFT_OUT.isdisjoint(path.relative_to(folder).parts[:-1]):
            for function in _functions(path.read_bytes()):
                doc = ast.get_docstring(function)
                if doc and not function.name.startswith("__"):
                    text = "\n    ".join(doc.splitlines())
                    head = f"def {function.name}({ast.unparse(function.args)}):"
                    yield "code", f'{head}\n    """{text}\n    """', None


def _functions(source: bytes) -> list[ast.FunctionDef]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def task_prompts(path: Path, rng: random.Random) -> Iterator[Prompt]:
    """Yields functions to write, with one to three examples of what they return."""
    for line in path.read_text(encoding="utf-8").splitlines():
        task = json.loads(line)
        functions = {function.name: function for function in _functions(task["code"].encode())}
        examples = [match for test in task["test_list"] if (match := _EXAMPLE.match(test))]
        function = functions.get(examples[0][2]) if examples else None
        if function is not None:
            before, example, after = rng.choice(_EXAMPLES)
            shown = examples[: rng.randrange(1, 4)]
            examples = "".join(example.format(match[1], match[3]) for match in shown)
            text = _WISH.sub("", task["text"].strip())
            head = f"def {function.name}({ast.unparse(function.args)}):\n"
            opening = before.format(text[:1].upper() + text[1:])
            yield "task", head + opening + examples + after, None


def problem_prompts(path: Path) -> Iterator[Prompt]:
    """Yields questions of problems."""
    for line in path.read_text(encoding="utf-8").splitlines():
        yield "problem", json.loads(line)["question"], None


def foreign_prompts(path: Path, language: str) -> Iterator[Prompt]:
    """Yields sentences to translate."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            yield "translation", f"Translate {language} to English: {line.strip()}", None


def article_prompts(path: Path, letters: int, rng: random.Random) -> Iterator[Prompt]:
    """Yields questions about titles, and wishes about paragraphs, cut to ``letters``."""
    lines = path.read_text(encoding="utf-8").splitlines()
    titles = [match[1] for line in lines if (match := _HEADING.match(line))]
    titles = [_plain(title) for title in titles] or ["the world"]
    for kind, forms in (("title", _ABOUT), ("writing", _WRITE), ("json", _OBJECTS)):
        for title in titles:
            yield from ((kind, form.format(title, rng.choice(titles)), None) for form in forms)
    title = titles[0]
    for line in lines:
        if match := _HEADING.match(line):
            title = _plain(match[1])
        elif not line.startswith(" ="):
            text = _sentences(_plain(line), letters)
            if len(text) > _MIN_PASSAGE:
                yield "summary", rng.choice(_SUM_UP).format(text), None
                yield "passage", rng.choice(_ASK).format(text, title), None


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
    drawn: list[Prompt], letters: int, count: int, rng: random.Random
) -> list[dict[str, str]]:
    """Returns ``count`` of the prompts, of each kind its share as far as there are so many.

    letters: most of a prompt.
    """
    by_kind: dict[str, list[dict[str, str]]] = {kind: [] for kind in SHARES}
    for kind, prompt, suffix in dict.fromkeys(drawn):
        is_fit = _MIN_LETTERS * (kind == "code") < len(prompt) <= letters
        if is_fit and _UNKNOWN not in prompt:
            behind = {} if suffix is None else {"suffix": suffix}
            by_kind[kind].append({"category": kind, "prompt": prompt, **behind})
    whole = sum(share for kind, share in SHARES.items() if by_kind[kind])
    made = []
    for kind, prompts in by_kind.items():
        rng.shuffle(prompts)
        made += prompts[: round(count * SHARES[kind] / whole)]
    return _side_by_side(made, rng)


def _side_by_side(prompts: list[dict[str, str]], rng: random.Random) -> list[dict[str, str]]:
    """Returns the prompts in groups of like length, the groups in any order."""
    ranked = sorted(prompts, key=lambda prompt: len(prompt["prompt"] + prompt.get("suffix", "")))
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
    "fill": 0.4,
    "program": 0.15,
    "json": 0.08,
}
"""How many of the prompts are of each kind."""


def _all_prompts(
    options: argparse.Namespace, languages: list[str], rng: random.Random
) -> Iterator[Prompt]:
    """Yields prompts of all sources that are named; languages: of the sentences to translate."""
    if options.articles:
        yield from article_prompts(options.articles, options.letters - _FRAME, rng)
    if options.problems:
        yield from problem_prompts(options.problems)
    for folder in options.code or ():
        yield from code_prompts(folder)
    if options.tasks:
        yield from task_prompts(options.tasks, rng)
    for path, language in zip(options.foreign or (), languages, strict=False):
        yield from foreign_prompts(path, language)
    for folder in options.fill or ():
        yield from fill_prompts(folder, options.letters, rng)
    for folder in options.programs or ():
        yield from program_prompts(folder, options.letters, rng)


def main(arguments: list[str] | None = None) -> None:
    """Reads texts, makes and writes prompts."""
    parser = argparse.ArgumentParser(description="Make prompts for a chat model out of texts.")
    parser.add_argument("output", type=Path, help="JSONL to write")
    parser.add_argument("--articles", type=Path, help="text with headings, as WikiText")
    parser.add_argument("--problems", type=Path, help="JSONL with `question`, as GSM8K")
    parser.add_argument("--code", type=Path, action="append", help="folder of Python files")
    parser.add_argument("--tasks", type=Path, help="JSONL with `text` and examples, as MBPP")
    parser.add_argument(
        "--foreign", type=Path, action="append", help="text of another language, a sentence a line"
    )
    parser.add_argument("--language", action="append", help="of --foreign (default: German)")
    parser.add_argument("--fill", type=Path, action="append", help="folder of programs to fill in")
    parser.add_argument("--programs", type=Path, action="append", help="folder of programs")
    parser.add_argument("--letters", type=int, default=700, help="most letters of a prompt")
    parser.add_argument("--count", type=int, default=2400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = random.Random(options.seed)
    languages = [*(options.language or ()), *["German"] * len(options.foreign or ())]
    try:
        prompts = list(_all_prompts(options, languages, rng))
    except (OSError, ValueError, KeyError) as error:
        sys.exit(f"error: {error}")
    if not prompts:
        sys.exit(
            "error: no texts to make prompts of, expected --articles, --problems, --code, "
            "--tasks, --foreign, --fill or --programs"
        )
    made = chosen(prompts, options.letters, options.count, rng)
    text = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in made)
    options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
