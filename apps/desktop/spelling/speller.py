"""What the interface knows of words: verdicts of a dictionary that another process has."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from edgedec.apps.desktop.spelling.own_words import OwnWords
from edgedec.apps.desktop.spelling.words import plain
from edgedec.models.errors import ConfigError

_N_KEPT = 100_000
"""Words whose verdicts are remembered."""

_END_MS = 1000

Receiver = Callable[[list[str]], None]
"""Called with words that may have been meant."""


class Speller(QObject):
    """Tells which words are wrong, as soon as that is known; never waits for it.

    changed: more is known than before. failed: why nothing will be.
    """

    changed = Signal()
    failed = Signal(str)

    def __init__(self, own_words: OwnWords, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._own_words = own_words
        self._language = ""
        self._process: QProcess | None = None
        self._is_wrong: dict[str, bool] = {}
        self._unasked: set[str] = set()
        self._receivers: dict[str, Receiver] = {}
        self._asking = QTimer(self, singleShot=True, interval=0)
        self._asking.timeout.connect(self._ask)

    def follow(self, language: str) -> None:
        """Uses the dictionary of a language from now on; empty: none, and no word is wrong."""
        if language == self._language:
            return
        self.close()
        self._language = language
        self._is_wrong.clear()
        if language:
            try:
                self._own_words.read()
            except ConfigError as error:
                self.failed.emit(str(error))
            self._process = self._started(language)
        self.changed.emit()

    def is_wrong(self, word: str) -> bool:
        """Says whether a word is in no dictionary; False while that is not known yet."""
        word = plain(word)
        if self._process is None or word in self._own_words:
            return False
        if word not in self._is_wrong:
            self._unasked.add(word)
            if not self._asking.isActive():
                self._asking.start()
        return self._is_wrong.get(word, False)

    def suggest(self, word: str, receiver: Receiver) -> None:
        """Calls ``receiver`` with words that may have been meant, unless the dictionary is gone."""
        if self._process is not None:
            self._receivers[plain(word)] = receiver
            self._tell(self._process, {"suggest": plain(word)})

    def add(self, word: str) -> None:
        """Adds a word to the owner's dictionary."""
        try:
            self._own_words.add(plain(word))
        except ConfigError as error:
            self.failed.emit(str(error))
        self.changed.emit()

    def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        self._unasked.clear()
        self._receivers.clear()
        if process is not None:
            process.kill()
            process.waitForFinished(_END_MS)
            process.deleteLater()

    def _started(self, language: str) -> QProcess:
        process = QProcess(self)
        process.setProgram(sys.executable)
        process.setArguments(["-m", "edgedec.apps.desktop.spelling.worker", language])
        process.readyReadStandardOutput.connect(lambda: self._read(process))
        process.finished.connect(lambda: self._lose(process))
        process.start()
        return process

    def _ask(self) -> None:
        words, self._unasked = self._unasked, set()
        if self._process is not None and words:
            self._tell(self._process, {"check": sorted(words)})

    def _tell(self, process: QProcess, what: dict[str, Any]) -> None:
        process.write(json.dumps(what).encode() + b"\n")

    def _read(self, process: QProcess) -> None:
        while process == self._process and process.canReadLine():
            message = json.loads(bytes(process.readLine().data()))
            if "error" in message:
                self.failed.emit(message["error"])
            elif "suggest" in message:
                if (receiver := self._receivers.pop(message["suggest"], None)) is not None:
                    receiver(message["suggestions"])
            else:
                self._learn(message["checked"], set(message["unknown"]))

    def _learn(self, checked: list[str], unknown: set[str]) -> None:
        if len(self._is_wrong) + len(checked) > _N_KEPT:
            self._is_wrong.clear()
        self._is_wrong |= {word: word in unknown for word in checked}
        self.changed.emit()

    def _lose(self, process: QProcess) -> None:
        """The process has ended by itself: what it said is read, and no more is asked."""
        self._read(process)
        if process is self._process:
            self._process = None
            self.changed.emit()
