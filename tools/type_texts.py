"""Writes texts for `type_replay.py`: prose and chats in English, German, Spanish and French.

python tools/type_texts.py FOLDER

Prose is the Debian Administrator's Handbook, chats are questions and answers of ChatterBot. They
come from `apt install debian-handbook` and `pip install --no-deps chatterbot-corpus==1.3.3`.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import random
import re
from pathlib import Path

HANDBOOK = Path("/usr/share/doc/debian-handbook/html")
LANGUAGES = {"en": ("en-US", "english"), "de": ("de-DE", "german"), "es": ("es-ES", "spanish"),
             "fr": ("fr-FR", "french")}  # fmt: skip
"""Code -> folder of the handbook, folder of the chats."""

CHATS = {
    "conversations", "emociones", "emotion", "food", "greetings", "health", "history", "humor",
    "literature", "movies", "politics", "psicologia", "psychology", "sports", "trivia",
}  # fmt: skip

_PARAGRAPH = re.compile(r'<div class="para">(.*?)</div>', re.DOTALL)
_TAG = re.compile(r"<[^>]+>")
_SPACES = re.compile(r"\s+")
_NO_PROSE = re.compile(r"[<>{}=/_]")
_CHAT_LINE = re.compile(r"^\s*-\s+-?\s*['\"]?(.*?)['\"]?\s*$")
_MIN_CHARACTERS = {"prose": 150, "chat": 25}
_MAX_CHARACTERS = 400


def prose(folder: str, root: Path) -> list[str]:
    """Returns paragraphs of the handbook in one language."""
    pages = sorted((root / folder).glob("*.html"))
    inner = [part for page in pages for part in _PARAGRAPH.findall(page.read_text("utf-8"))]
    plain = [_SPACES.sub(" ", html.unescape(_TAG.sub("", part))).strip() for part in inner]
    return [text for text in plain if not _NO_PROSE.search(text)]


def chats(folder: str) -> list[str]:
    """Returns lines of conversations in one language."""
    spec = importlib.util.find_spec("chatterbot_corpus")
    if spec is None or spec.origin is None:
        raise SystemExit("no package chatterbot_corpus: see this file's first lines")
    lines: list[str] = []
    for file in sorted((Path(spec.origin).parent / "data" / folder).glob("*.yml")):
        if file.stem in CHATS:
            conversations = file.read_text("utf-8").partition("conversations:")[2]
            matches = map(_CHAT_LINE.match, conversations.splitlines())
            lines += [match.group(1).replace("''", "'") for match in matches if match]
    return lines


def main() -> None:
    """Writes a file of each kind in each language, its paragraphs in a mixed order."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--handbook", type=Path, default=HANDBOOK)
    options = parser.parse_args()
    if not options.handbook.is_dir():
        raise SystemExit(f"no folder {options.handbook}: see this file's first lines")
    options.folder.mkdir(parents=True, exist_ok=True)
    english = set(prose("en-US", options.handbook))
    for code, (pages, conversations) in LANGUAGES.items():
        texts = {"prose": prose(pages, options.handbook), "chat": chats(conversations)}
        if code != "en":
            texts["prose"] = [text for text in texts["prose"] if text not in english]
        for kind, paragraphs in texts.items():
            least = _MIN_CHARACTERS[kind]
            chosen = sorted({text for text in paragraphs if least <= len(text) <= _MAX_CHARACTERS})
            random.Random(1).shuffle(chosen)
            path = options.folder / f"{kind}-{code}.txt"
            path.write_text("".join(f"{text}\n" for text in chosen), encoding="utf-8")
            print(f"{path}: {len(chosen)} paragraphs, {sum(map(len, chosen))} characters")


if __name__ == "__main__":
    main()
