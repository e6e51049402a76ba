"""Texts that a model wrote for trainings, in a file: `fleet write` makes it, trainings read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.system.files import replacing


@dataclass(frozen=True)
class WrittenTexts:
    """Prompts, each with the model's answer behind, as token ids.

    fingerprint: of the model, as `fingerprint_of` makes it.
    """

    fingerprint: str
    temperature: float
    texts: Sequence[list[int]]

    def write(self, path: Path) -> None:
        """Writes a file, whole or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        head = {"model": self.fingerprint, "temperature": self.temperature}
        lines = [json.dumps(row) for row in (head, *self.texts)]
        try:
            with replacing(path) as file:
                file.write("".join(line + "\n" for line in lines).encode())
        except OSError as error:
            raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None


def read_written(path: Path, fingerprint: str, vocab_size: int) -> WrittenTexts:
    """Returns the texts of a file, which the model with this fingerprint must have written.

    Raises:
        ConfigError: The file cannot be read, or another model wrote it.
    """
    expected = "expected a file that `edgedec fleet write` made"
    try:
        head, *texts = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        written = WrittenTexts(head["model"], float(head["temperature"]), texts)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ConfigError(f"{path} has no texts of a model, {expected}") from None
    if not all(is_text(text, vocab_size) for text in texts):
        raise ConfigError(f"{path} has a line that is no list of this model's tokens, {expected}")
    if written.fingerprint != fingerprint:
        raise ConfigError(f"{path} was written by another model: write texts with this bundle")
    return written


def is_text(tokens: object, vocab_size: int) -> bool:
    """Returns whether something is a list of token ids."""
    return isinstance(tokens, list) and all(
        type(token) is int and 0 <= token < vocab_size for token in tokens
    )


def enough_of(texts: Iterable[list[int]], n_tokens: int) -> list[list[int]]:
    """Returns the first texts that have ``n_tokens`` together; all if they have fewer."""
    encoded: list[list[int]] = []
    n_found = 0
    for text in texts:
        if n_found >= n_tokens:
            break
        encoded.append(text)
        n_found += len(text)
    return encoded
