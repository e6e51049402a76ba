"""Chromium without a window, for tests of pages and of editors that are pages."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_TAKES_PIPES = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


_IS_LOADING = ("context", "navigated")
"""What the browser's refusals name while a page takes another's place."""


class Browser:
    """Chromium, driven through its debugging pipes."""

    def __init__(self, folder: Path) -> None:
        asked, self._to = os.pipe()
        self._from, answers = os.pipe()
        command = [
            "bash", "-c", _TAKES_PIPES, "bash", str(asked), str(answers), str(CHROMIUM),
            "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "--window-size=1000,720", "--hide-scrollbars",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command,
            pass_fds=(asked, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(asked)
        os.close(answers)
        self._numbers = itertools.count(1)
        self._held = b""
        self._session = ""

    def open(self, url: str) -> None:
        target = self.ask("Target.createTarget", url=url)["targetId"]
        attached = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def run(self, script: str) -> Any:
        """Returns the value of ``script`` in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot")["data"]))

    def ask(self, method: str, **params: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                refusal = answer.get("error", {}).get("message", "")
                if any(word in refusal for word in _IS_LOADING):
                    return self.ask(method, **params)
                assert "result" in answer, answer
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._held:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser ended"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def type(self, text: str) -> None:
        """Types a text where the page's cursor is, a key at a time."""
        for character in text:
            self.ask("Input.insertText", text=character)

    def press(self, name: str, number: int, modifiers: int = 0) -> None:
        """Presses a key such as Tab by its name and its number in Windows; 1: Alt, 2: Control."""
        given = {"key": name, "code": name, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, **given)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)
