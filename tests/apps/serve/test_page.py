"""The page, in headless Chromium."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
_TAKES_PIPES = 'exec 3<&"$1" 4>&"$2"; shift 2; exec "$@"'


class Browser:
    """Chromium, told what to do through its debugging pipes."""

    def __init__(self, folder: Path) -> None:
        asked, self._to = os.pipe()
        self._from, told = os.pipe()
        command = [
            "bash", "-c", _TAKES_PIPES, "bash", str(asked), str(told), str(CHROMIUM), "--headless",
            "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={folder}",
            "--window-size=1000,720", "--hide-scrollbars",
        ]  # fmt: skip
        self.process = subprocess.Popen(
            command, pass_fds=(asked, told), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(asked)
        os.close(told)
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
                return answer["result"]

    def _next(self) -> Any:
        while b"\0" not in self._held:
            part = os.read(self._from, 1 << 16)
            assert part, "the browser ended"
            self._held += part
        message, _, self._held = self._held.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._to)
        os.close(self._from)


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    found = Browser(tmp_path / "profile")
    yield found
    found.close()


Until = Callable[[Callable[[], bool]], None]


def text_of(browser: Browser, selector: str) -> str:
    found = f"[...document.querySelectorAll('{selector}')]"
    return str(browser.run(f"{found}.map(element => element.textContent).join('|')"))


def send(browser: Browser, text: str, **settings: Any) -> None:
    for name, value in settings.items():
        browser.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
    browser.run(f"document.getElementById('prompt').value = {json.dumps(text)}")
    browser.run("document.getElementById('form').requestSubmit()")


def is_idle(browser: Browser) -> bool:
    return bool(browser.run("document.getElementById('stop').disabled"))


def test_a_conversation(server: Any, browser: Browser, until: Until, cheap_rows: None) -> None:
    browser.open(server.url)
    until(lambda: text_of(browser, "#model") == "smollm2")
    ask = {"max_tokens": 24, "temperature": 0, "method": "plain"}
    send(browser, "Name <b>three</b> colours.", **ask)
    until(lambda: is_idle(browser) and "tokens/s" in text_of(browser, "#state"))
    assert text_of(browser, ".user") == "Name <b>three</b> colours."
    message = {"role": "user", "content": "Name <b>three</b> colours."}
    body = {"messages": [message], "max_tokens": 24, "temperature": 0}
    _, answer = server.ask("POST", "/v1/chat/completions", body)
    assert text_of(browser, ".model") == answer["choices"][0]["message"]["content"]
    assert text_of(browser, ".drafted") == ""
    send(browser, "Repeat: red, green, blue, red, green, blue, red, green, blue.", method="lookup")
    until(lambda: is_idle(browser) and "|" in text_of(browser, ".model"))
    assert "kept" in text_of(browser, "#state")
    assert text_of(browser, ".model .drafted") != ""
    assert text_of(browser, "#legend .drafted") == "lookup"
    if folder := os.environ.get("EDGEDEC_PICTURES"):
        browser.picture(Path(folder) / "serve.png")


def test_an_answer_is_stopped(server: Any, browser: Browser, until: Until) -> None:
    browser.open(server.url)
    until(lambda: text_of(browser, "#model") == "smollm2")
    send(browser, "Tell me a long story.", max_tokens=8000)
    until(lambda: text_of(browser, ".model") != "")
    browser.run("document.getElementById('stop').click()")
    until(lambda: is_idle(browser))
    assert text_of(browser, "#state").endswith(", stopped")
    until(lambda: server.service.n_running == 0)


def test_problems_are_shown(server: Any, browser: Browser, until: Until) -> None:
    browser.open(server.url)
    until(lambda: text_of(browser, "#model") == "smollm2")
    send(browser, "Hello", method="magic")
    until(lambda: "magic" in text_of(browser, ".error"))
    send(browser, "One, two,", method="plain", mode="text", max_tokens=4, temperature=0)
    until(lambda: text_of(browser, ".model") != "" and is_idle(browser))
