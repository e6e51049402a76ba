"""The near end of a worker: starts it, asks it, survives it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from edgedec.apps.peers import Runtime
from edgedec.models.errors import EdgedecError
from edgedec.system import usage
from edgedec.system.streams import is_reader_gone

_FOLDER = Path(__file__).parent
_USAGE = Path(usage.__file__)
_TIMEOUT_S = 900.0


class PeerError(EdgedecError):
    """A runtime is missing, cannot load the model, or its process ended."""


class Worker:
    """One runtime in a process of its own, with a model loaded.

    facts: what it says it loaded. load_ms: time of loading. first_token_ms: from the start of the
    process to the first token.
    """

    def __init__(self, runtime: Runtime, python: str, spec: dict[str, Any]) -> None:
        self.runtime = runtime
        self.error: str | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        started_s = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                [python, *map(str, (_FOLDER / "worker.py", _FOLDER / runtime.adapter, _USAGE))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
            )
        except OSError as error:
            self._errors.close()
            raise PeerError(f"cannot start {python}: {error.strerror}") from None
        try:
            answer = self.ask({"op": "open", "spec": {**spec, "runtime": runtime.name}})
        except BaseException:
            self.close()
            raise
        self.facts: dict[str, Any] = answer["facts"]
        self.load_ms = 1000 * answer["load_s"]
        self.first_token_ms = 1000 * (time.perf_counter() - started_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: dict[str, Any], timeout_s: float = _TIMEOUT_S) -> dict[str, Any]:
        """Returns the worker's answer; PeerError if it reports an error, hangs or ends."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._read_line(timeout_s)
        except OSError as error:
            if not is_reader_gone(error):
                raise
            line = b""
        if not line:
            raise PeerError(f"its process ended{self._last_words()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(self._explain(answer["error"]))
        return answer

    def close(self) -> None:
        """Ends the process. Closing twice is fine."""
        if self._errors.closed:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):  # it died with something unread
            self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _read_line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        lines: list[bytes] = []
        stdout = self._process.stdout
        reading = threading.Thread(target=lambda: lines.append(stdout.readline()), daemon=True)
        reading.start()
        reading.join(timeout_s)
        if reading.is_alive():
            self._process.kill()
            reading.join()
            raise PeerError(f"no answer within {timeout_s:.0f} s")
        return lines[0]

    def _explain(self, error: str) -> str:
        """Returns the error with what to do about it."""
        if not error.startswith(("ModuleNotFoundError", "ImportError", "PackageNotFoundError")):
            return error.partition(": ")[2] or error
        packages = " ".join(self.runtime.packages)
        install = f"pip install {packages}, or " if packages else ""
        missing = error.partition(": ")[2]
        return (
            f"not installed ({missing}): {install}name a Python that has it with "
            f"--peer-python {self.runtime.name}=PYTHON"
        )

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._errors.seek(0)
        lines = self._errors.read()[-2000:].decode(errors="replace").split("\n")
        words = [line.strip() for line in lines if line.strip()]
        code = self._process.returncode
        return f" with code {code}" + (f": {words[-1][:200]}" if words else "")
