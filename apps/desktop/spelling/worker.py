"""A program of its own that knows a dictionary, so that reading it holds nobody up.

python -m edgedec.apps.desktop.spelling.worker LANGUAGE

It answers a JSON object a line with one a line: {"check": [words]} with {"unknown": [words]} and
{"checked": [words]}; {"suggest": word} with {"suggest": word, "suggestions": [words]}. Where it
cannot begin it says {"error"}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from edgedec.models.installation import install_command

_N_SUGGESTIONS = 6
_LONG = 14
"""Letters of a word with so many neighbours two edits away that looking at them takes seconds."""


def languages() -> list[str]:
    """Returns the languages that there are dictionaries of; none where the library is missing."""
    try:
        from spellchecker import SpellChecker
    except ImportError:
        return []
    return sorted(SpellChecker.languages())


def known_parts(checker: Any, word: str) -> bool:
    """Says whether a word is in the dictionary, or is of words that are: ``men's``, ``l'eau``."""
    parts = word.split("'")
    return len(parts) > 1 and all(len(part) <= 2 or part in checker for part in parts)


def suggestions(checker: Any, word: str) -> list[str]:
    """Returns words of the dictionary that are like ``word``, the most usual first."""
    checker.distance = 1 if len(word) > _LONG else 2
    candidates = (checker.candidates(word) or set()) - {word.lower()}
    likeliest = sorted(
        candidates, key=lambda candidate: (-checker.word_usage_frequency(candidate), candidate)
    )
    shown = likeliest[:_N_SUGGESTIONS]
    return (
        [candidate[0].upper() + candidate[1:] for candidate in shown]
        if word[0].isupper()
        else shown
    )


def answer(checker: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Returns what is known of what is asked."""
    if "suggest" in request:
        return {**request, "suggestions": suggestions(checker, request["suggest"])}
    words = request["check"]
    unknown = [word for word in words if not (word in checker or known_parts(checker, word))]
    return {"checked": words, "unknown": unknown}


def main(arguments: list[str]) -> int:
    """Answers until there are no more questions; returns the exit code."""
    (language,) = arguments
    if not (known := languages()):
        _tell({"error": f"spelling needs pyspellchecker: {install_command('desktop')}"})
        return 1
    if language not in known:
        reason = f"there is no dictionary of {language!r}, expected one of {', '.join(known)}"
        _tell({"error": reason})
        return 1
    from spellchecker import SpellChecker

    checker = SpellChecker(language)
    for line in sys.stdin:
        _tell(answer(checker, json.loads(line)))
    return 0


def _tell(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
