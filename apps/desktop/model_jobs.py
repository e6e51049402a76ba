"""What is done about models beside the window: listing them, and making one ready for use."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from PySide6.QtCore import QObject, QProcess, QProcessEnvironment, Signal

_PERCENT = re.compile(r"(\d{1,3})%")
_LIST = "from edgedec.apps.cli import main; main()"
_END_MS = 3000


class ModelJobs(QObject):
    """Lists models, and gets one at a time, in processes of their own, which can be ended.

    listed: with the table of `edgedec models list --json`. began: with the name of a model.
    progressed: with a phase and per mille of it; -1 if unknown. made: with the bundle that is ready
    now. ended: with the reason if nothing was made, else "".
    """

    listed = Signal(object)
    began = Signal(str)
    progressed = Signal(str, int)
    made = Signal(str)
    ended = Signal(str)

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._job: QProcess | None = None
        self._listing: QProcess | None = None
        self._phase, self._reason, self._bundle = "", "", ""

    @property
    def is_busy(self) -> bool:
        """A model is being made ready."""
        return self._job is not None

    def refresh(self) -> None:
        """Lists what is here; `listed` follows."""
        if self._listing is None:
            self._listing = self._process(["-c", _LIST, "models", "list", "--json"])
            self._listing.finished.connect(self._on_listed)
            self._listing.start()

    def get(self, name: str) -> None:
        """Downloads a model if it is not here, and makes its bundle; ``name`` may be a file."""
        if self._job is not None or not name:
            return
        self._phase = self._reason = self._bundle = ""
        self._job = self._process(["-m", "edgedec.apps.desktop.model_job", name])
        self._job.readyReadStandardOutput.connect(self._on_out)
        self._job.readyReadStandardError.connect(self._on_err)
        self._job.finished.connect(self._on_done)
        self._job.start()
        self.began.emit(name)

    def cancel(self) -> None:
        """Ends the job. What was downloaded stays, and the next download goes on from there."""
        if self._job is not None:
            self._reason = "Cancelled. A new download goes on from there."
            self._job.terminate()

    def close(self) -> None:
        """Ends what runs, and waits for it: the window goes."""
        for process in (self._job, self._listing):
            if process is not None:
                process.blockSignals(True)
                process.terminate()
                if not process.waitForFinished(_END_MS):
                    process.kill()
                    process.waitForFinished(_END_MS)

    def _process(self, arguments: list[str]) -> QProcess:
        process = QProcess(self)
        environment = QProcessEnvironment.systemEnvironment()
        environment.insert("TQDM_POSITION", "-1")  # bars of the hub's client, though no terminal
        process.setProcessEnvironment(environment)
        process.setProgram(sys.executable)
        process.setArguments(arguments)
        return process

    def _on_listed(self) -> None:
        listing, self._listing = self._listing, None
        assert listing is not None
        try:
            self.listed.emit(json.loads(bytes(listing.readAllStandardOutput().data())))
        except ValueError:
            self.ended.emit(_last_line(bytes(listing.readAllStandardError().data())))
        listing.deleteLater()

    def _on_out(self) -> None:
        job = self._job
        while job is not None and job.canReadLine():
            said: dict[str, Any] = json.loads(bytes(job.readLine().data()))
            if "phase" in said:
                self._phase, total = said["phase"], said["total"]
                self.progressed.emit(self._phase, 1000 * said["done"] // total if total else -1)
            self._reason = said.get("error", self._reason)
            self._bundle = said.get("made", self._bundle)

    def _on_err(self) -> None:
        if self._job is not None:
            text = bytes(self._job.readAllStandardError().data()).decode(errors="replace")
            if percents := _PERCENT.findall(text):
                self.progressed.emit(self._phase, 10 * int(percents[-1]))

    def _on_done(self, code: int) -> None:
        self._on_out()
        job, self._job = self._job, None
        if job is not None:
            job.deleteLater()
        is_made = code == 0 and bool(self._bundle)
        self.ended.emit("" if is_made else self._reason or f"it ended with code {code}")
        if is_made:
            self.made.emit(self._bundle)
        self.refresh()


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "the list of models is empty"
