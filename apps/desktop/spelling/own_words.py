"""Words that somebody added to the dictionary, in a file of theirs."""

from __future__ import annotations

from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.system.files import replace_text

_MAX_BYTES = 1 << 20


class OwnWords:
    """A file with a word a line, which only its owner may read; case does not matter."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._words: set[str] = set()

    def __contains__(self, word: str) -> bool:
        return word.casefold() in self._words

    def read(self) -> None:
        """Learns the words in the file, if there is one.

        Raises:
            ConfigError: It is no list of words.
        """
        try:
            with self.path.open("rb") as file:
                data = file.read(_MAX_BYTES + 1)
            if len(data) > _MAX_BYTES:
                raise ConfigError(f"{self.path} has more than {_MAX_BYTES} bytes: shorten it")
            self._words |= {word.casefold() for word in data.decode().split()}
        except FileNotFoundError:
            return
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {self.path}: {error}; mend or remove it") from None

    def add(self, word: str) -> None:
        """Adds a word, to those that another editor has added meanwhile, too.

        Raises:
            ConfigError: It cannot be written; the word is known until the end all the same.
        """
        self._words.add(word.casefold())
        self.read()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            words = "".join(f"{word}\n" for word in sorted(self._words))
            replace_text(self.path, words, is_private=True)
        except OSError as error:
            raise ConfigError(f"cannot add to {self.path}: {error.strerror}") from None
