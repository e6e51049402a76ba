"""Makes prompts as an editor's model reads them, for `edgedec train head --self N --prompts FILE`.

    git show 0954ea0e:tools/chat_prompts.py >chat_prompts.py
    python tools/typing_prompts.py prompts.jsonl chat_prompts.py --stdlib /usr/lib/python3.11
        --packages SITE --package attr --package click --npm /usr/lib/node_modules/npm
        --perl /usr/share/perl/5.36.0 --articles wiki.txt --problems gsm8k.jsonl --count 600

Every second one is a place in a program or in JSON where a text is missing: it begins behind whole
words, as `PromptLayout.split` leaves them, and ends where a line does, most often. They stand where
`train head` has them filled in in the order of autocomplete. The others are those of
`chat_prompts.py`. Modules that `bench --typing` is measured with are left out.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MEASURED = {"textwrap.py", "shlex.py", "csv.py"}
_NAMED = ("textwrap", "shlex", "csv.")
_LEFT_OUT = {
    "test", "tests", "idlelib", "lib2to3", "site-packages", "__pycache__", "dist-packages",
    "_vendor",
}  # fmt: skip
_HALF_WORD = re.compile(r"[^\S\n]?\w{0,24}\Z")
_LETTERS = 900
_SHARES = {
    "code": 0.45, "problem": 0.1, "title": 0.09, "writing": 0.1, "summary": 0.12, "passage": 0.1,
    "program": 0.12, "json": 0.1, "task": 0.0, "translation": 0.0, "fill": 0.0,
}  # fmt: skip

Hole = tuple[str, str]
"""What is before a missing text, and behind it."""


def _texts(folder: Path, kinds: set[str]) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        is_of_kind = path.suffix in kinds and path.is_file() and path.name not in _MEASURED
        is_part = _LEFT_OUT.isdisjoint(path.relative_to(folder).parts[:-1])
        if is_of_kind and is_part and 600 < path.stat().st_size < 200_000:
            text = path.read_text(encoding="utf-8", errors="replace")
            n_lines = text.count("\n")
            if n_lines > 20 and len(text) < 70 * n_lines and "\ufffd" not in text:
                yield text


def holes(folder: Path, kinds: set[str], count: int, rng: random.Random) -> list[Hole]:
    """Returns at most ``count`` places in the files of these kinds below a folder."""
    texts, found = list(_texts(folder, kinds)), set[Hole]()
    for _ in range(count * 6):
        if len(found) >= count or not texts:
            break
        text = rng.choice(texts)
        start = rng.randrange(len(text) // 10, len(text))
        end = text.find("\n", start)
        if end < 0:
            continue
        for _ in range(rng.choice((0, 0, 1, 2, 4))):
            line_end = text.find("\n", end + 1)
            end = line_end if line_end > 0 else end
        if rng.random() < 0.2:
            end = rng.randrange(start, end + 1)
        before = _HALF_WORD.sub("", text[:start], count=1)
        if not before.strip():
            continue
        last = before[-rng.randrange(350, 850) :]
        if len(last) < len(before):
            last = last[last.find("\n") + 1 :]
        after = text[end:][: rng.randrange(120, 420)]
        if len(last) >= 100:
            found.add((last, after))
    return sorted(found)


def main() -> None:
    """Reads texts, makes and writes prompts."""
    parser = argparse.ArgumentParser(description="Make prompts as an editor's model reads them.")
    parser.add_argument("output", type=Path, help="JSONL to write")
    parser.add_argument("chat_prompts", type=Path, help="program that makes the other prompts")
    for name in ("stdlib", "packages", "npm", "perl", "articles", "problems"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--package", action="append", help="folder below --packages")
    parser.add_argument("--count", type=int, default=600, help="places to fill in")
    parser.add_argument("--seed", type=int, default=11)
    options = parser.parse_args()
    rng, count = random.Random(options.seed), options.count
    packages = [options.packages / name for name in options.package]
    fill = holes(options.stdlib, {".py"}, int(count * 0.36), rng)
    for package in packages:
        fill += holes(package, {".py"}, max(4, int(count * 0.36 / len(packages))), rng)
    fill += holes(options.npm, {".js", ".mjs"}, int(count * 0.1), rng)
    fill += holes(options.npm, {".json"}, int(count * 0.12), rng)
    fill += holes(options.perl, {".pm", ".pl"}, int(count * 0.04), rng)
    rng.shuffle(fill)
    others = _others(options, packages, len(fill), rng)
    lines: list[dict[str, str]] = []
    for other, (before, after) in zip(others, fill, strict=False):
        lines += [other, {"category": "fill", "prompt": before, "suffix": after}]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    options.output.write_text(text, encoding="utf-8")


def _others(
    options: argparse.Namespace, packages: list[Path], count: int, rng: random.Random
) -> list[dict[str, str]]:
    """Returns prompts of questions, summaries, programs and JSON."""
    chat: dict[str, Any] = runpy.run_path(str(options.chat_prompts))
    chat["_LEFT_OUT"].update(_LEFT_OUT)
    chat["SHARES"].update(_SHARES)
    drawn = list(chat["article_prompts"](options.articles, _LETTERS - 100, rng))
    drawn += chat["problem_prompts"](options.problems)
    for folder in (options.stdlib, *packages):
        drawn += chat["code_prompts"](folder)
    for folder in (options.stdlib, options.npm, *packages[:6]):
        drawn += chat["program_prompts"](folder, _LETTERS, rng)
    chosen = chat["chosen"](drawn, _LETTERS, count, rng)
    others = [one for one in chosen if not any(name in one["prompt"] for name in _NAMED)]
    rng.shuffle(others)
    return others


if __name__ == "__main__":
    main()
