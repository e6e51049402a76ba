"""Types texts with `edgedec type`'s suggestions and counts keys: no clock, so the same each time.

python tools/type_replay.py BUNDLE FILE... [--keys 1500] [--said SAID.json]

A FILE is text in UTF-8, whose paragraphs are typed one by one, each in an empty field. At each
place the model says what comes next, once; thresholds and numbers of words are compared on that.
The typist takes a suggestion that is right as a whole (Tab), else its first word if that is right
(Ctrl+Right), if that saves a key, and types on if not.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import edgedec
from edgedec.apps.type.program import N_CONTEXT, typing_settings
from edgedec.apps.type.prose import MIN_SAVED, first_word, fitted, is_worth_asking
from edgedec.apps.type.settings import TypeSettings
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, Offer
from edgedec.runtime.opening.options import EngineOptions

_MIN_PROBABILITY = 0.1
_THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_WORDS = (1, 2, 3)
_MIN_PARAGRAPH = 60


@dataclass
class Counts:
    """keys: pressed. characters: that they wrote. n_wrong, n_right: suggestions by their end."""

    keys: int = 0
    characters: int = 0
    n_wrong: int = 0
    n_right: int = 0

    @property
    def saved(self) -> float:
        """Share of keys that nobody had to press."""
        return 1 - self.keys / self.characters

    @property
    def wrong(self) -> float:
        """Wrong suggestions per 100 keys."""
        return 100 * self.n_wrong / self.keys


def continuations(completer: Autocompleter, text: str, seen: list[Offer]) -> list[list[Offer]]:
    """Returns for each place of ``text`` what the model says, growing."""
    offers: list[list[Offer]] = []
    for at in range(len(text)):
        if is_worth_asking(text[:at], ""):
            completer.update(Document("", 0)).result()  # or it goes on with the place before
            seen.clear()
            completer.update(Document(text[:at], at)).result()
        offers.append(seen.copy())
        seen.clear()
    return offers


def type_text(text: str, said: list[list[Offer]], least: float, n_words: int) -> Counts:
    """Returns what typing ``text`` came to."""
    counts, at, ghost = Counts(characters=len(text)), 0, ""
    while at < len(text):
        offers = [offer for offer in said[at] if offer.probability >= least]
        if not ghost and offers:
            is_complete = offers[-1].is_complete or len(offers) < len(said[at])
            ghost = fitted(text[:at], "", offers[-1].text, is_complete, n_words)
        rest, word = text[at:], first_word(ghost)
        counts.keys += 1
        if ghost and rest.startswith(ghost):
            counts.n_right += 1
            at, ghost = at + len(ghost), ""
        elif (
            len(word) >= MIN_SAVED and rest.startswith(word) and not rest[len(word) :][:1].isalnum()
        ):
            counts.n_right += 1
            at, ghost = at + len(word), ""
        elif ghost[:1] == rest[:1]:
            at, ghost = at + 1, ghost[1:]
        else:
            counts.n_wrong += bool(ghost)
            at, ghost = at + 1, ""
    return counts


def paragraphs(path: Path, n_keys: int) -> list[str]:
    """Returns paragraphs of a file until they have ``n_keys`` characters together."""
    texts: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if len(line) >= _MIN_PARAGRAPH and sum(map(len, texts)) < n_keys:
            texts.append(line.strip()[:n_keys])
    return texts


def main() -> None:
    """Prints a table of thresholds and words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--keys", type=int, default=1500)
    parser.add_argument("--said", type=Path, help="write what the model said")
    options = parser.parse_args()
    seen: list[Offer] = []
    typing = typing_settings(TypeSettings(min_probability=_MIN_PROBABILITY))
    all_said = {}
    with (
        edgedec.load(options.bundle, EngineOptions(context=N_CONTEXT)) as engine,
        Autocompleter(
            engine,
            AutocompleteConfig(**typing),
            lambda offer: seen.append(offer) if offer else None,
        ) as completer,
    ):
        for file in options.files:
            texts = paragraphs(file, options.keys)
            said = [continuations(completer, text, seen) for text in texts]
            all_said[file.name] = [
                (text, [[(o.text, o.probability, o.is_complete) for o in at] for at in places])
                for text, places in zip(texts, said, strict=True)
            ]
            if options.said:
                options.said.write_text(json.dumps(all_said))
            for n_words in _WORDS:
                for least in _THRESHOLDS:
                    counts = [
                        type_text(*text, least, n_words) for text in zip(texts, said, strict=True)
                    ]
                    total = Counts(*(sum(getattr(c, n) for c in counts) for n in vars(Counts())))
                    print(
                        f"{file.name:<20} {n_words} words, {least:.1f}: "
                        f"{total.saved:6.1%} saved, {total.wrong:5.1f} wrong per 100 keys"
                    )
                    sys.stdout.flush()


if __name__ == "__main__":
    main()
