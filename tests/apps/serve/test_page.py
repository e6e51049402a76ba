"""The page, in headless Chromium."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.serve.page_files import PATHS

from ...browser import CHROMIUM, Browser

pytestmark = pytest.mark.e2e

FOLDER = Path(__file__).parents[3] / "apps" / "serve" / "page"
HOSTILE = """\
# Title <script>window.harmed = 1</script>

<img src=x onerror="window.harmed = 2"> ![picture](http://127.0.0.1:9/x.png)

[link](javascript:window.harmed=3) [other](https://example.org) <svg/onload=window.harmed=4>

```python" onmouseover="window.harmed=5
def greet(): return "<b>hi</b>"
```

```js
const x = "</code><img src=x onerror=window.harmed=6>";
```

<iframe srcdoc="<script>parent.harmed=7</script>"></iframe>
<form action=/><input autofocus onfocus=window.harmed=8>
"""


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    found = Browser(tmp_path / "profile")
    yield found
    found.close()


Until = Callable[[Callable[[], bool]], None]


def text_of(browser: Browser, selector: str) -> str:
    found = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return str(browser.run(f"{found}.map(element => element.textContent).join('|')"))


def begin(browser: Browser, server: Any, until: Until) -> None:
    browser.open(server.url)
    until(lambda: text_of(browser, "#model") == "smollm2")


def send(browser: Browser, text: str, **settings: Any) -> None:
    for name, value in settings.items():
        browser.run(f"document.getElementById('{name}').value = {json.dumps(value)}")
    browser.run(f"document.getElementById('prompt').value = {json.dumps(text)}")
    browser.run("document.getElementById('form').requestSubmit()")


def click(browser: Browser, selector: str) -> None:
    browser.run(f"document.querySelector({json.dumps(selector)}).click()")


def is_idle(browser: Browser) -> bool:
    return bool(browser.run("document.getElementById('stop').disabled"))


def answered(browser: Browser) -> Callable[[], bool]:
    return lambda: is_idle(browser) and "tokens/s" in text_of(browser, "#state")


def show(browser: Browser, text: str, **turn: Any) -> None:
    """Puts an answer into the browser's storage, as if a model had written it."""
    turns = [
        {"role": "user", "text": "Write.", "mode": "chat"},
        {"role": "assistant", "text": text, "mode": "chat", "model": "smollm2", **turn},
    ]
    kept = json.dumps({"id": "made", "system": "", "turns": turns, "changed": 1})
    browser.run(f"localStorage.setItem('edgedec.conversation.made', {json.dumps(kept)})")
    browser.run("location.reload()")


def test_a_conversation(server: Any, browser: Browser, until: Until, cheap_rows: None) -> None:
    begin(browser, server, until)
    ask = {"max_tokens": 24, "temperature": 0, "method": "plain", "system": "You answer briefly."}
    send(browser, "Name <b>three</b> colours.", **ask)
    browser.run("document.getElementById('system').dispatchEvent(new Event('change'))")
    until(answered(browser))
    assert text_of(browser, ".user .text") == "Name <b>three</b> colours."
    message = {"role": "user", "content": "Name <b>three</b> colours."}
    body = {"messages": [message], "max_tokens": 24, "temperature": 0}
    _, answer = server.ask("POST", "/v1/chat/completions", body)
    said = answer["choices"][0]["message"]["content"]
    assert text_of(browser, ".model .text").strip() == said.strip()
    assert text_of(browser, ".drafted") == ""
    assert browser.run("document.getElementById('colour').checked") is False
    assert text_of(browser, "#spoken").strip() == "Answer: " + said
    click(browser, "#colour")
    send(browser, "Repeat: red, green, blue, red, green, blue, red, green, blue.", method="lookup")
    until(lambda: is_idle(browser) and "|" in text_of(browser, ".model .text"))
    assert "kept" in text_of(browser, "#state")
    assert text_of(browser, ".model .drafted") != ""
    assert text_of(browser, "#legend .drafted") == "lookup"


def test_an_answer_is_stopped(server: Any, browser: Browser, until: Until) -> None:
    begin(browser, server, until)
    send(browser, "Tell me a long story.", max_tokens=8000)
    assert text_of(browser, ".waiting").startswith("Reading the prompt")
    until(lambda: text_of(browser, ".model .text") != "")
    assert text_of(browser, ".waiting") == ""
    click(browser, "#stop")
    until(lambda: is_idle(browser))
    assert text_of(browser, "#state").endswith(", stopped")
    until(lambda: server.service.n_running == 0)


def test_how_much_of_a_prompt_is_read(server: Any, browser: Browser, until: Until) -> None:
    begin(browser, server, until)
    # Numbers appear after a second, which this clock makes short.
    browser.run(
        "const now = performance.now.bind(performance); performance.now = () => 1000 * now();"
        "window.seen = []; new MutationObserver(() => window.seen.push("
        "document.querySelector('.waiting')?.textContent))"
        ".observe(document.getElementById('log'), {childList: true, subtree: true})"
    )
    send(browser, "A bird" + " and then one more" * 150, max_tokens=1)
    until(answered(browser))
    seen = browser.run("window.seen.filter(text => text?.includes('%'))")
    numbers = [int(text.split()[3]) for text in seen]
    assert len(set(numbers)) > 2
    assert numbers == sorted(numbers)
    assert any(re.fullmatch(r"Reading the prompt, \d+ %, about \d+ s left", one) for one in seen)
    assert text_of(browser, ".waiting") == ""


def test_problems_are_shown(server: Any, browser: Browser, until: Until) -> None:
    begin(browser, server, until)
    send(browser, "Hello", method="magic")
    until(lambda: "magic" in text_of(browser, ".error"))
    assert browser.run("document.getElementById('prompt').value") == "Hello"  # to be sent again
    send(browser, "One, two,", method="plain", mode="text", max_tokens=4, temperature=0)
    until(lambda: text_of(browser, ".model") != "" and is_idle(browser))


def test_an_answer_that_was_cut_says_so(server: Any, browser: Browser, until: Until) -> None:
    begin(browser, server, until)
    assert browser.run("document.getElementById('max_tokens').value") == ""
    send(browser, "Tell me a long story.", method="plain", max_tokens=3)
    until(answered(browser))
    assert text_of(browser, "#state").endswith("cut: the most is 3 tokens; empty: to the end")
    send(browser, "One, two, three, four,", mode="text", max_tokens="", temperature=0)
    until(lambda: is_idle(browser) and "first after" in text_of(browser, "#state"))
    assert int(text_of(browser, "#state").split()[0]) > 16  # where the interface itself would end


def test_messages_are_edited_and_answers_written_again(
    server: Any, browser: Browser, until: Until
) -> None:
    begin(browser, server, until)
    send(browser, "Say one.", max_tokens=3, temperature=0, method="plain")
    until(answered(browser))
    first = text_of(browser, ".model .text")
    send(browser, "Say two.")
    until(lambda: is_idle(browser) and "|" in text_of(browser, ".model .text"))
    click(browser, ".model [aria-label^='Write this answer again']")
    until(lambda: is_idle(browser) and text_of(browser, ".user .text") == "Say one.")
    assert text_of(browser, ".model .text") == first
    click(browser, ".user [aria-label^='Edit']")
    browser.run("document.querySelector('.edited').value = 'Say three.'")
    browser.press("Enter", 13)
    until(lambda: is_idle(browser) and text_of(browser, ".user .text") == "Say three.")
    # What is refused leaves the conversation as it was.
    browser.run("document.getElementById('method').value = 'magic'")
    click(browser, ".model [aria-label^='Write this answer again']")
    until(lambda: "magic" in text_of(browser, ".error"))
    assert text_of(browser, ".user .text") == "Say three."
    assert text_of(browser, ".model .text") != ""


def test_conversations_are_kept_in_the_browser_alone(
    server: Any, browser: Browser, until: Until
) -> None:
    begin(browser, server, until)
    send(browser, "First.", max_tokens=2, method="plain")
    until(answered(browser))
    click(browser, "#new")
    assert text_of(browser, ".turn") == ""
    send(browser, "Second.")
    until(answered(browser))
    browser.run("document.title = 'before'; location.reload()")
    until(lambda: browser.run("document.title") == "edgedec")
    until(lambda: text_of(browser, "#conversations .title") == "Second.|First.")
    until(lambda: text_of(browser, ".user .text") == "Second.")
    click(browser, "#conversations [aria-label='Open: First.']")
    assert text_of(browser, ".user .text") == "First."
    browser.run("window.confirm = () => true")
    click(browser, "#conversations [aria-label='Delete: First.']")
    assert text_of(browser, "#conversations .title") == "Second."
    click(browser, "#forget")
    assert browser.run("localStorage.length") == 0


def test_answers_are_markdown_with_code_that_is_copied(
    server: Any, browser: Browser, until: Until
) -> None:
    begin(browser, server, until)
    show(browser, "**Bold**, and\n\n```python\ndef f(x):\n    return x\n```\n\n- [x] done\n")
    until(lambda: text_of(browser, ".model strong") == "Bold")
    assert text_of(browser, ".code .hljs-keyword") == "def|return"
    assert text_of(browser, ".model li").startswith("☑ done")
    browser.run("navigator.clipboard.writeText = async text => { window.copied = text; }")
    click(browser, ".code button")
    until(lambda: browser.run("window.copied") == "def f(x):\n    return x\n")
    until(lambda: text_of(browser, ".code button") == "Copied")


def test_hostile_answers_run_nothing(server: Any, browser: Browser, until: Until) -> None:
    begin(browser, server, until)
    show(browser, HOSTILE)
    until(lambda: "Title" in text_of(browser, ".model h1"))
    browser.run(
        "document.querySelectorAll('#log *').forEach(one => "
        "['mouseover', 'focus', 'error', 'load'].forEach(k => one.dispatchEvent(new Event(k))))"
    )
    assert browser.run("window.harmed") is None
    odd = "#log :is(img, script, iframe, svg, form, input, object, embed, style, link)"
    assert text_of(browser, odd) == ""
    assert browser.run(f"document.querySelectorAll({json.dumps(odd)}).length") == 0
    links = "[...document.querySelectorAll('#log a')].map(a => a.getAttribute('href')).join()"
    assert browser.run(links) == ",https://example.org"  # the first has lost its address
    assert "<script>window.harmed = 1</script>" in text_of(browser, ".model .text")
    handlers = "[...document.querySelectorAll('#log *')].flatMap(one => one.getAttributeNames())"
    assert browser.run(f"{handlers}.filter(name => name.startsWith('on')).length") == 0
    refused = "try { document.body.innerHTML = '<b>x</b>'; 'taken' } catch (e) { e.name }"
    assert browser.run(refused) == "TypeError"  # HTML enters through DOMPurify alone


def test_controls_have_names(server: Any, browser: Browser, until: Until) -> None:
    begin(browser, server, until)
    show(browser, "```python\nx = 1\n```")
    until(lambda: text_of(browser, ".code code") != "")
    browser.ask("Accessibility.enable")
    nodes = browser.ask("Accessibility.getFullAXTree")["nodes"]
    kinds = {"button", "textbox", "combobox", "checkbox", "spinbutton", "main", "navigation"}
    shown = [node for node in nodes if node.get("role", {}).get("value") in kinds]
    assert len(shown) > 10
    assert [one for one in shown if not one.get("name", {}).get("value")] == []


def test_what_the_page_is_made_of_is_served_without_a_key(make_server: Callable[..., Any]) -> None:
    server = make_server(api_keys=("secret",))
    for path in PATHS:
        status, headers, data = server.ask_raw("GET", path)
        assert status == 200
        assert "script-src 'self'" in headers["content-security-policy"]
        # Nothing is fetched from other servers.
        if "vendor" not in path:
            assert re.findall(rb"https?://", data.replace(b"^(?:https?|mailto):", b"")) == []


def test_the_bundled_libraries_are_named_with_their_licences() -> None:
    scripts = sorted((FOLDER / "vendor").glob("*.js"))
    versions = json.loads((FOLDER / "vendor" / "versions.json").read_text(encoding="utf-8"))
    assert [script.stem for script in scripts] == sorted(versions)
    for script in scripts:
        assert versions[script.stem]["version"] in script.read_text(encoding="utf-8")[:400]
        assert script.with_suffix(".LICENSE").stat().st_size > 1000


@pytest.mark.skipif("EDGEDEC_PICTURES" not in os.environ, reason="EDGEDEC_PICTURES is not set")
@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 420)])
def test_pictures(
    make_server: Callable[..., Any], browser: Browser, until: Until, theme: str, width: int
) -> None:
    """Takes pictures of the page. EDGEDEC_PICTURES: their folder; EDGEDEC_CODER: a bundle."""
    server = make_server([f"qwen2.5-coder={os.environ['EDGEDEC_CODER']}"])
    browser.open(server.url)
    size = {"width": width, "height": 820, "deviceScaleFactor": 1, "mobile": False}
    browser.ask("Emulation.setDeviceMetricsOverride", **size)
    scheme = {"name": "prefers-color-scheme", "value": theme}
    browser.ask("Emulation.setEmulatedMedia", features=[scheme])
    until(lambda: text_of(browser, "#model") == "qwen2.5-coder")
    send(browser, "What is a list comprehension? One sentence.", temperature=0, max_tokens=90)
    until(answered(browser))
    click(browser, "#new")
    send(browser, "Write a short Python function that counts words. Code only.", max_tokens=160)
    until(lambda: is_idle(browser) and text_of(browser, ".code") != "")
    plain = (theme, width) == ("light", 1280)
    name = "serve.png" if plain else f"serve-{theme}-{width}.png"
    browser.picture(Path(os.environ["EDGEDEC_PICTURES"]) / name)
