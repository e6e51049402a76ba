"""The model behind the window: in a process of its own, loaded again where settings ask for it."""

from __future__ import annotations

import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PySide6.QtCore import QObject, QProcess, QTimer, Signal

from edgedec.apps.desktop.remote_completer import RemoteCompleter, RemotePredictor
from edgedec.apps.desktop.settings import EditorSettings
from edgedec.apps.typing.bundle_stamp import Stamp, stamp_of
from edgedec.widgets import Suggester

_REPLACED_MS = 1000
"""How often it is looked whether the bundle was replaced."""

_END_MS = 10_000
"""How long what was read may take to be written down when the window closes."""

_LIVES = 3
"""How often a process is started for the same settings, if it ends by itself."""


class ServedModel(QObject):
    """Makes a suggester follow the settings. What there is serves until the next is there.

    loading: with the name of a bundle that is being loaded. serving: with the one that is served.
    failed: why settings cannot be followed, or that the bundle is another now.

    n_drafted, n_accepted, origins: what was done, as of `TypingCounts`. cpu_s: processor time of
    the model's process.
    """

    loading = Signal(str)
    serving = Signal(str)
    failed = Signal(str)

    def __init__(self, suggester: Suggester, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.n_drafted = self.n_accepted = 0
        self.origins: Counter[str] = Counter()
        self.cpu_s = 0.0
        self._suggester = suggester
        self._process: QProcess | None = None
        self._newest: dict[str, Any] | None = None  # what the process was asked to follow
        self._n_lives = 0
        self._completer: RemoteCompleter | None = None  # that serves
        self._predictor: RemotePredictor | None = None  # beside it
        self._loaded: tuple[Path, Stamp] | None = None  # the newest bundle that could be
        self._is_closed = False
        looking = QTimer(self, interval=_REPLACED_MS)
        looking.timeout.connect(self._look)
        looking.start()

    def want(self, settings: EditorSettings) -> None:
        """Has the model follow ``settings``; returns at once."""
        source = {
            "bundle": settings.bundle,
            "threads": settings.threads,
            "context": settings.context,
            "memory": asdict(settings.memory),
        }
        order = {"source": source, "typing": asdict(settings.typing), "edits": settings.edits}
        if order == self._newest or not settings.bundle or self._is_closed:
            return
        self._newest, self._n_lives = order, _LIVES
        if self._process is None:
            self._start()
        self._ask("follow", **order, is_anew=False)

    def close(self) -> None:
        """Ends what is being computed, and releases the model. Closing twice is fine."""
        if self._is_closed:
            return
        self._is_closed = True
        self._suggester.close()
        process, self._process = self._process, None
        if process is not None:
            process.closeWriteChannel()
            if not process.waitForFinished(_END_MS):
                process.kill()
                process.waitForFinished(_END_MS)
            process.deleteLater()

    def _start(self) -> None:
        self._process = process = QProcess(self)
        process.setProgram(sys.executable)
        process.setArguments(["-m", "edgedec.apps.typing.model_worker"])
        process.setProcessChannelMode(QProcess.ProcessChannelMode.ForwardedErrorChannel)
        process.readyReadStandardOutput.connect(lambda: self._read(process))
        process.finished.connect(lambda: self._lose(process))
        process.start()
        self._n_lives -= 1

    def _look(self) -> None:
        """Loads the bundle again if another has taken its place."""
        if self._loaded is None or self._newest is None or self._is_closed:
            return
        folder, stamp = self._loaded
        if (now := stamp_of(folder)) == stamp:
            return
        self._loaded = folder, now
        if now is None:
            self.failed.emit(f"{folder} is gone; the loaded model stays in use")
        else:
            self.failed.emit(f"{folder} was replaced and is loaded again")
            self._ask("follow", **self._newest, is_anew=True)

    def _ask(self, name: str, /, **arguments: object) -> None:
        if self._process is not None:  # Qt keeps what cannot be written yet
            self._process.write(json.dumps({"do": name, **arguments}).encode() + b"\n")

    def _read(self, process: QProcess) -> None:
        while process is self._process and process.canReadLine():
            message = json.loads(bytes(process.readLine().data()))
            getattr(self, f"_on_{message.pop('tell')}")(**message)

    def _on_loading(self, bundle: str) -> None:
        self.loading.emit(bundle)

    def _on_failed(self, reason: str) -> None:
        self.failed.emit(reason)

    def _on_serving(
        self,
        number: int,
        reach: int,
        has_edits: bool,
        bundle: str,
        folder: str,
        stamp: list[int] | None,
    ) -> None:
        self._completer = RemoteCompleter(number, reach, self._ask)
        self._predictor = RemotePredictor(number, self._ask) if has_edits else None
        self._loaded = Path(folder), None if stamp is None else (stamp[0], stamp[1], stamp[2])
        if (before := self._suggester.put(self._completer, self._predictor)) is not None:
            before.close()
        self.serving.emit(bundle)

    def _on_offer(self, number: int, offer: dict[str, Any]) -> None:
        if (completer := self._completer_of(number)) is not None:
            self._suggester.hear(completer.offer(offer))

    def _on_silence(self, number: int, request: int) -> None:
        if (completer := self._completer_of(number)) is not None:
            completer.hear_silence(request)

    def _on_edit(self, number: int, request: int, edit: dict[str, Any] | None) -> None:
        if self._completer_of(number) is not None and self._predictor is not None:
            self._predictor.hear(request, edit)

    def _on_alternatives(self, number: int, request: int, offers: list[dict[str, Any]]) -> None:
        if (completer := self._completer_of(number)) is not None:
            completer.hear_alternatives(request, offers)

    def _on_ended(self, number: int, reason: str) -> None:
        if (completer := self._completer_of(number)) is not None:
            completer.fail(reason)

    def _on_counts(
        self, n_drafted: int, n_accepted: int, origins: dict[str, int], cpu_s: float
    ) -> None:
        self.n_drafted, self.n_accepted, self.cpu_s = n_drafted, n_accepted, cpu_s
        self.origins = Counter(origins)

    def _completer_of(self, number: int) -> RemoteCompleter | None:
        """Returns the completer that an answer is for, unless it serves no more."""
        completer = self._completer
        return completer if completer is not None and completer.number == number else None

    def _lose(self, process: QProcess) -> None:
        """The process has ended by itself: another is started, if that may help."""
        if process is not self._process:
            return
        self._read(process)
        self._process = self._completer = self._predictor = None
        process.deleteLater()
        self._suggester.put(None)
        if self._newest is None or self._n_lives == 0:
            self._newest = None  # the same settings may be tried again
            self.failed.emit("the model's process ended again: nothing is offered any more")
            return
        self.failed.emit("the model's process ended and is started again")
        self._start()
        self._ask("follow", **self._newest, is_anew=False)
