"""Types texts with `edgedec type`'s suggestions and counts keys: no clock, so the same each time.

python tools/type_replay.py BUNDLE FILE... [--keys 3000] [--said FOLDER]

A FILE is text in UTF-8, whose paragraphs are typed one by one, each in an empty field. At each
place the model says what comes next, once; thresholds and numbers of words are compared on that.
The typist takes a suggestion that is right as a whole (Tab), else its first word if that is right
(Ctrl+Right), if that saves a key, and types on if not.

Threshold and number of words are chosen on each file's paragraphs 1, 3, 5, ... together: those
that save the most keys of those with at most 5 wrong suggestions per 100 keys. The table is of
the paragraphs 2, 4, 6, ..., with these and with the usual ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import edgedec
from edgedec.apps.type.program import N_CONTEXT, typing_settings
from edgedec.apps.type.prose import MIN_SAVED, first_word, fitted, is_worth_asking
from edgedec.apps.type.settings import TypeSettings
from edgedec.autocomplete import AutocompleteConfig, Autocompleter, Document, Offer
from edgedec.runtime.opening.options import EngineOptions

_MIN_PROBABILITY = 0.1
_THRESHOLDS = tuple(i / 20 for i in range(2, 19))
_WORDS = (1, 2, 3)
_MAX_WRONG = 5.0

Said = list[tuple[str, float, bool]]
"""What the model says at a place, growing: text, its probability, whether it is complete."""


@dataclass(frozen=True)
class Paragraph:
    """A text, and what the model says at each place of it."""

    text: str
    said: list[Said]


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


class Model:
    """A bundle that says how texts go on."""

    def __init__(self, bundle: Path) -> None:
        self._seen: list[Offer] = []
        typing = typing_settings(TypeSettings(min_probability=_MIN_PROBABILITY))
        self._engine = edgedec.load(bundle, EngineOptions(context=N_CONTEXT))
        self._completer = Autocompleter(
            self._engine,
            AutocompleteConfig(**typing),
            lambda offer: self._seen.append(offer) if offer else None,
        )

    def follow(self, text: str) -> Paragraph:
        """Returns a text with what the model says at each place."""
        said: list[Said] = []
        for at in range(len(text)):
            self._seen.clear()
            if is_worth_asking(text[:at], ""):
                self._completer.update(
                    Document("", 0)
                ).result()  # or it goes on with the place before
                self._seen.clear()
                self._completer.update(Document(text[:at], at)).result()
            said.append([(o.text, o.probability, o.is_complete) for o in self._seen])
        return Paragraph(text, said)

    def close(self) -> None:
        self._completer.close()
        self._engine.close()


def type_text(paragraph: Paragraph, least: float, n_words: int) -> Counts:
    """Returns what typing a paragraph came to."""
    text = paragraph.text
    counts, at, ghost = Counts(characters=len(text)), 0, ""
    while at < len(text):
        offers = [offer for offer in paragraph.said[at] if offer[1] >= least]
        if not ghost and offers:
            continuation, _, is_complete = offers[-1]
            is_complete = is_complete or len(offers) < len(paragraph.said[at])
            ghost = fitted(text[:at], "", continuation, is_complete, n_words)
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


def total(paragraphs: Iterable[Paragraph], least: float, n_words: int) -> Counts:
    """Returns what typing some paragraphs came to."""
    counts = [type_text(paragraph, least, n_words) for paragraph in paragraphs]
    return Counts(*(sum(getattr(c, name) for c in counts) for name in vars(Counts())))


def texts_of(path: Path, n_keys: int) -> list[str]:
    """Returns paragraphs of a file until they have ``n_keys`` characters together."""
    texts: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and sum(map(len, texts)) < n_keys:
            texts.append(line.strip()[:n_keys])
    return texts


def replay(bundle: Path, file: Path, n_keys: int, folder: Path | None) -> list[Paragraph]:
    """Returns paragraphs of a file with what the model says, from ``folder`` if it is there."""
    kept = folder / f"{bundle.stem}-{file.stem}-{n_keys}.json" if folder else None
    if kept and kept.exists():
        rows = json.loads(kept.read_text(encoding="utf-8"))
        return [Paragraph(text, [[tuple(o) for o in at] for at in said]) for text, said in rows]
    model = Model(bundle)
    paragraphs = [model.follow(text) for text in texts_of(file, n_keys)]
    model.close()
    if kept:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps([(p.text, p.said) for p in paragraphs]), encoding="utf-8")
    return paragraphs


def best(paragraphs: list[Paragraph]) -> tuple[float, int]:
    """Returns threshold and number of words that save the most keys with few wrong suggestions."""
    settings = [(least, n_words) for least in _THRESHOLDS for n_words in _WORDS]
    counted = {setting: total(paragraphs, *setting) for setting in settings}
    good = [setting for setting in settings if counted[setting].wrong <= _MAX_WRONG]
    return max(good or settings[-1:], key=lambda setting: counted[setting].saved)


def row(name: str, counts: Counts) -> str:
    """Returns a line of the table."""
    return (
        f"{name:<16} {counts.characters:>7} characters: {counts.saved:6.1%} of keys saved,"
        f" {counts.wrong:4.1f} wrong per 100 keys"
    )


def main() -> None:
    """Prints a table of files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--keys", type=int, default=3000, help="characters of a file")
    parser.add_argument("--said", type=Path, help="folder for what the model says")
    parser.add_argument("--every", action="store_true", help="print each threshold, too")
    options = parser.parse_args()
    texts = {f.stem: replay(options.bundle, f, options.keys, options.said) for f in options.files}
    first = [paragraph for paragraphs in texts.values() for paragraph in paragraphs[::2]]
    second = {name: paragraphs[1::2] for name, paragraphs in texts.items()}
    if options.every:
        for least in _THRESHOLDS:
            for n_words in _WORDS:
                print(row(f"{least:.2f}, {n_words} words", total(first, least, n_words)))
    usual = TypeSettings().min_probability, TypeSettings().words
    for about, chosen in (("chosen on the other half", best(first)), ("usual", usual)):
        print(f"{options.bundle.stem}: {about}: {chosen[0]:.2f}, {chosen[1]} words")
        for name, paragraphs in second.items():
            print(row(name, total(paragraphs, *chosen)))
        if len(second) > 1:
            print(row("all", total(chain(*second.values()), *chosen)))


if __name__ == "__main__":
    main()
