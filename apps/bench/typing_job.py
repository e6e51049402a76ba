"""One passage typed against an autocompleter, key by key, in real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from edgedec.apps.bench.keystrokes import Passage, is_taken, key_times
from edgedec.autocomplete.answer import first_line
from edgedec.autocomplete.autocompleter import Autocompleter
from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document
from edgedec.autocomplete.offer import Offer, TypingCounts
from edgedec.runtime.engine.engine import Engine


@dataclass
class Typed:
    """What came of typing.

    n_characters: that stand there now. n_keys: pressed for them. n_offers: suggestions that were
    there when the next key was pressed. n_taken: of these. n_exact: offers that are how the line
    goes on, to its end. similarity: of each offer to as much of the line, 0 to 1. first_ms: from a
    key to its first suggestion, where there was one. key_s: when those keys were pressed, from the
    beginning. cpu_s: processor time. counts: of the
    autocompleter.
    """

    n_characters: int = 0
    n_keys: int = 0
    n_offers: int = 0
    n_taken: int = 0
    n_exact: int = 0
    similarity: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    key_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    counts: TypingCounts = field(default_factory=TypingCounts)


class _Screen:
    """What is on offer right now, as the autocompleter's thread reports it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._offer: Offer | None = None
        self._first: dict[int, float] = {}

    def show(self, offer: Offer | None) -> None:
        """Takes the place of what was there."""
        with self._lock:
            self._offer = offer
            if offer is not None:
                self._first.setdefault(offer.version, offer.ms)

    def text(self, version: int) -> str:
        """Returns what is on offer for the state ``version``."""
        with self._lock:
            is_own = self._offer is not None and self._offer.version == version
            return self._offer.text if is_own and self._offer is not None else ""

    @property
    def first_ms(self) -> dict[int, float]:
        """The time to the first suggestion, by the number of the state."""
        with self._lock:
            return dict(self._first)


def type_passage(
    engine: Engine,
    config: AutocompleteConfig,
    passage: Passage,
    seed: int,
    wait: Callable[[float], None] = time.sleep,
    report: Callable[[int], None] = lambda n: None,
) -> Typed:
    """Returns what came of typing ``passage``.

    A suggestion that is right is taken when the next key would be pressed.

    Args:
        seed: Of the times between keys. wait: Lets one of them pass. Units: seconds.
        report: Called with the characters typed so far.
    """
    typed, screen, at = Typed(), _Screen(), 0
    times = key_times(len(passage.typed), seed)
    cpu_s, begun_s = time.process_time(), time.perf_counter()
    pressed_s = [0.0]
    with Autocompleter(engine, config, screen.show) as completer:
        for n_updates in range(1, len(passage.typed) + 1):
            written = passage.before + passage.typed[:at]
            document = Document(written + passage.behind, len(written), passage.name)
            pressed_s.append(time.perf_counter() - begun_s)
            completer.update(document)
            wait(next(times))
            rest = passage.typed[at:]
            at += _press(typed, screen.text(n_updates), rest)
            report(at)
            if at == len(passage.typed):
                break
        typed.counts = completer.counts
    typed.n_characters = at
    typed.first_ms = list(screen.first_ms.values())
    typed.key_s = [pressed_s[version] for version in screen.first_ms]
    typed.cpu_s = time.process_time() - cpu_s
    return typed


def _press(typed: Typed, offered: str, rest: str) -> int:
    """Presses the next key, one that takes the offer if it is right; returns what that writes."""
    typed.n_keys += 1
    if offered:
        line = first_line(rest)
        typed.n_offers += 1
        typed.n_exact += offered == line
        same = SequenceMatcher(None, offered, line[: len(offered)], autojunk=False)
        typed.similarity.append(same.ratio())
    if is_taken(offered, rest):
        typed.n_taken += 1
        return len(offered)
    return 1
