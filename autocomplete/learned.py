"""What became of offers on this machine, and how sure the model has to be from that."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from edgedec.models.errors import ConfigError
from edgedec.models.fields import Fields
from edgedec.runtime.config.checks import checked_path
from edgedec.system.files import replace_text

N_CLASSES = 20
"""Classes of probability, alike in width, from 0 to 1."""

_PRICE = 4.0
"""Characters that an offer has to be right by to make up for one that is wrong and was read."""

_MIN_OFFERS = 20.0
"""Offers below a threshold, before it is believed that they are not worth it."""

_KEPT = 0.999
"""Of all counts at each offer, so that about the latest thousand count; those that are no longer
made are forgotten with the others, and made again some time."""

_HIGHEST = 0.9
"""Threshold."""


class LearnedOffers:
    """Right and wrong offers by how sure the model was; in one small file of its owner's.

    An offer is right if it was written, by whatever keys.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Goes on with what is in a file; None: nothing is written down.

        Raises:
            ConfigError: The file cannot be read, or is something else.
        """
        path = None if path is None else checked_path("the file of learned offers", path)
        self._path = path
        self._n_characters, self._n_right, self._n_wrong = ([0.0] * N_CLASSES for _ in range(3))
        if path is not None:
            self._read(path)

    @property
    def n_offers(self) -> float:
        """Offers that are remembered."""
        return sum(self._n_right) + sum(self._n_wrong)

    def note(self, probability: float, n_characters: int) -> None:
        """Learns of an offer.

        Args:
            probability: Of the offer, by the model, 0 to 1.
            n_characters: Of the offer if it was right, 0 if it was wrong.
        """
        for counts in (self._n_characters, self._n_right, self._n_wrong):
            counts[:] = [_KEPT * count for count in counts]
        i = min(int(N_CLASSES * probability), N_CLASSES - 1)
        self._n_characters[i] += n_characters
        (self._n_right if n_characters else self._n_wrong)[i] += 1

    def threshold(self, least: float) -> float:
        """Returns the probability, at least ``least``, below which offers cost more than they gave.

        Of what is below ``least`` nothing is learned, for it is not offered.
        """
        best, best_gain, gain, n = least, 0.0, 0.0, 0.0
        for i in range(N_CLASSES):
            above = (i + 1) / N_CLASSES
            if above <= least:
                continue
            gain += self._n_characters[i] - _PRICE * self._n_wrong[i]
            n += self._n_right[i] + self._n_wrong[i]
            if above <= _HIGHEST and gain < best_gain and n >= _MIN_OFFERS:
                best, best_gain = above, gain
        return best

    def write(self) -> None:
        """Puts all of it into the file, whole or not at all.

        Raises:
            ConfigError: It cannot be written.
        """
        if self._path is None:
            return
        table = {
            "version": 2,
            "n_characters": self._n_characters,
            "n_right": self._n_right,
            "n_wrong": self._n_wrong,
        }
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_text(self._path, json.dumps(table), is_private=True)
        except OSError as error:
            raise ConfigError(f"cannot write {self._path}: {error.strerror}") from None

    def _read(self, path: Path) -> None:
        try:
            content = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"cannot read {path}: {error}; remove it") from None
        read = Fields(content, str(path), ConfigError)
        names = ("n_characters", "n_right", "n_wrong")
        read.exactly({"version", *names})
        if (version := read.integer("version")) != 2:
            read.fail("version", version, "2")
        counts = [_counts(read, name) for name in names]
        self._n_characters, self._n_right, self._n_wrong = counts


def _counts(read: Fields, name: str) -> list[float]:
    counts: Sequence[float] = read.numbers(name)
    if len(counts) != N_CLASSES or not all(0 <= count < 1e9 for count in counts):
        read.fail(name, list(counts), f"{N_CLASSES} counts")
    return list(counts)
