"""The page, in headless Chromium."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ...browser import CHROMIUM, Browser

pytestmark = pytest.mark.e2e


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


def test_an_answer_that_was_cut_says_so(server: Any, browser: Browser, until: Until) -> None:
    browser.open(server.url)
    until(lambda: text_of(browser, "#model") == "smollm2")
    assert browser.run("document.getElementById('max_tokens').value") == ""
    send(browser, "Tell me a long story.", method="plain", max_tokens=3)
    until(lambda: is_idle(browser) and "tokens/s" in text_of(browser, "#state"))
    assert text_of(browser, "#state").endswith("cut: the most is 3 tokens; empty: to the end")
    send(browser, "One, two, three, four,", mode="text", max_tokens="", temperature=0)
    until(lambda: is_idle(browser) and "first after" in text_of(browser, "#state"))
    assert int(text_of(browser, "#state").split()[0]) > 16  # where the interface itself would end
