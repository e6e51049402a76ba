"""Somebody who types a text that is known beforehand, and takes suggestions that are right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgedec.models.errors import ConfigError
from edgedec.system.files import read_text

MEAN_S, DEVIATION_S = 0.239, 0.112
"""Of the time between keys, over people. Source: Dhakal et al., "Observations on Typing from 136
Million Keystrokes" (CHI 2018)."""

MIN_TAKEN = 2
"""Characters of a suggestion below which nobody looks for the key that takes it."""


@dataclass(frozen=True)
class Passage:
    """Part of a file that is typed anew, between what is before and behind it."""

    name: str
    before: str
    typed: str
    behind: str


def read_passages(paths: list[Path], n_typed: int) -> list[Passage]:
    """Returns a passage from the middle of each file, ``n_typed`` characters long.

    It begins at the first line that begins behind a third of the file, with its indentation typed.

    Raises:
        ConfigError: A file cannot be read, or is too short.
    """
    return [_read_passage(path, n_typed) for path in paths]


def _read_passage(path: Path, n_typed: int) -> Passage:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot type {path} ({error}): expected a UTF-8 text file") from None
    start = text.find("\n", len(text) // 3) + 1
    stop = start + n_typed
    if start == 0 or stop > len(text):
        raise ConfigError(
            f"{path} has {len(text)} characters, expected at least {3 * n_typed // 2 + 100} to "
            f"type {n_typed} of them"
        )
    return Passage(path.name, text[:start], text[start:stop], text[stop:])


def key_times(n: int, seed: int) -> Iterator[float]:
    """Yields ``n`` times between keys. Units: seconds. Their logarithms are normal."""
    spread = np.log1p((DEVIATION_S / MEAN_S) ** 2)
    rng = np.random.default_rng(seed)
    mean = np.log(MEAN_S) - spread / 2
    yield from (float(t) for t in rng.lognormal(mean, np.sqrt(spread), n))


def is_taken(offered: str, rest: str) -> bool:
    """Whether a suggestion is taken by somebody who wants to write ``rest``, for one key press."""
    return len(offered) >= MIN_TAKEN and rest.startswith(offered)
