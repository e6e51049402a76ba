"""Prints the token ids that a bundle writes, for twenty prompts by three methods.

python written.py BUNDLE
"""

from __future__ import annotations

import json
import sys

import edgedec

PROMPTS = (
    "Why is the sky blue?", "Write a haiku about rain.", "Name three rivers of Europe.",
    "What is 17 times 23?", "Translate 'good morning' into French.", "Who wrote Faust?",
    "Explain recursion to a child.", "List the planets, the largest first.",
    "def fibonacci(n):", "A joke about compilers, please.", "¿Cuál es la capital de Perú?",
    "Schreibe einen Satz über Straßenbahnen.", "What does HTTP 404 mean?",
    "Sum the numbers from 1 to 10.", "Give me a recipe for pancakes.", "😀 What is this?",
    "Is 91 a prime number?", "Repeat: one two three one two three one two",
    "What is the opposite of cold?", "Describe the sea in two sentences.",
)  # fmt: skip
REQUESTS = {
    "plain": {"method": "plain"},
    "auto": {"method": "auto"},
    "sampled": {"method": "plain", "sampling": {"temperature": 0.8}, "seed": 7},
}
"""Options of each request."""


def main() -> None:
    found: dict[str, list[list[int]]] = {}
    with edgedec.load(sys.argv[1], edgedec.EngineOptions(threads=2)) as engine:
        for name, options in REQUESTS.items():
            request = edgedec.GenerationConfig.from_dict({"max_new_tokens": 24, **options})
            found[name] = [list(engine.generate(text, request).token_ids) for text in PROMPTS]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
