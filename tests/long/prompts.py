"""A hundred prompts of many sorts, made from templates and from this repository's own text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from edgedec.runtime.engine.engine import Engine

ROOT = Path(__file__).parents[2]
N_PROMPTS = 100

_TOPICS = (
    "the water cycle", "a bicycle gear", "binary search", "the French Revolution", "sourdough",
    "how vaccines work", "prime numbers", "a chess opening",
)  # fmt: skip
_QUESTIONS = (
    "Explain {} to a child in a few sentences.",
    "Write a numbered list of five facts about {}.",
    "Write a short dialogue between two friends about {}.",
)
_EDITS = (
    "Repeat this code exactly, but rename the first function to `renamed`:\n\n{}",
    "Summarise this text in two sentences, with quotations from it:\n\n{}",
)
_FRAGMENTS = (
    "The lighthouse keeper had never spoken to anyone about the night when",
    "Il était une fois, dans une petite ville au bord de la mer,",
    "Die Straßenbahn war an diesem Morgen später als sonst, denn",
    "日本の首都は東京です。東京には",
    '{"name": "Ada", "age": 36, "languages": ["English", "French"]}\n{"name": "Alan", "age":',
    "| city | country | people |\n|---|---|---|\n| Paris | France | 2100000 |\n| Rome |",
    "1, 1, 2, 3, 5, 8, 13,",
    "Theorem. There are infinitely many primes.\n\nProof. Suppose",
    "Q: What is 17 * 24?\nA: Let us go step by step. First,",
    "SELECT name, COUNT(*) FROM orders JOIN customers ON",
    "<html>\n<head><title>Shop</title></head>\n<body>\n<ul>\n  <li>",
    "a b c a b c a b c a b",
    "2024-01-03 12:00:01 INFO started\n2024-01-03 12:00:02 INFO loaded 3 files\n2024-01-03",
    "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0;",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "🙂🙂👩‍👩‍👧 party invitation:",
)


def encoded_prompts(engine: Engine) -> list[list[int]]:
    """Returns the token ids of the prompts; those that ask for something in the chat template."""
    found = [engine.encode(text) for text in _plain_texts()]
    found += [engine.encode([{"role": "user", "content": text}]) for text in _requests()]
    assert len({tuple(ids) for ids in found}) == len(found) == N_PROMPTS
    return found


def _plain_texts() -> Iterator[str]:
    """Yields texts to be continued: fragments, sections of a page, beginnings of files."""
    yield from _FRAGMENTS
    sections = (ROOT / "docs/decoding.md").read_text(encoding="utf-8").split("\n## ")[1:]
    yield from (section[:500] for section in sections[:6])
    yield from (text[:600] for text in _source_texts()[:26])


def _requests() -> Iterator[str]:
    yield from (form.format(topic) for form, topic in product(_QUESTIONS, _TOPICS))
    yield from (form.format(text[200:900]) for form in _EDITS for text in _source_texts()[-14:])


def _source_texts() -> list[str]:
    """Returns files of the runtime, in the order of their names."""
    paths = sorted((ROOT / "runtime").rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in paths]
    return [text for text in texts if len(text) > 1000]
