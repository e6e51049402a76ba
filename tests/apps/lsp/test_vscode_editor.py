"""The packed extension in VS Code itself, that of code-server, seen through headless Chromium.

code-server is an npm package. It needs the Node.js that it names, and compilers for its parts.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ...browser import CHROMIUM, Browser
from .conftest import KNOWING

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
SUN = "The sun rises in the east and sets in the"
PATIENCE_S = 240
TAB, ENTER = ("Tab", 9), ("Enter", 13)
RIGHT, DOWN = ("ArrowRight", 39), ("ArrowDown", 40)
CONTROL, SHIFT = 2, 8
SCREEN = {"width": 880, "height": 480, "deviceScaleFactor": 2, "mobile": False}
GHOST = ".ghost-text, .ghost-text-decoration, .ghost-text-decoration-preview"
SEEN_S = 3
PAINT = '''"""How much paint a wall needs."""

LITRES_PER_SQUARE_METRE = 0.125


def litres(width, height, n_doors=0):
    """Returns the litres of paint for a wall with doors."""
    if width <= 0 or height <= 0:
        raise ValueError("a wall needs a size")
    area = width * height - 1.9 * n_doors
    return area * LITRES_PER_SQUARE_METRE


if __name__ == "__main__":
    print(litres(4.2, 2.5, n_doors=1))
'''
SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Dark Modern",
    "security.workspace.trust.enabled": False,
    "window.menuBarVisibility": "hidden",
    "workbench.activityBar.location": "hidden",
    "editor.minimap.enabled": False,
    "editor.wordWrap": "on",
    "editor.wordBasedSuggestions": "off",
    "files.exclude": {".venv": True},
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "telemetry.telemetryLevel": "off",
    "edgedec.min_probability": 0.1,
}

"""Not among them: `chat.disableAIFeatures`, which turns off inline completion as well."""


def until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(1)


def packed(folder: Path) -> Path:
    """Returns the extension as `make vsix` makes it."""
    source = folder / "source"
    left_out = shutil.ignore_patterns("node_modules", "out", "*.vsix")
    shutil.copytree(ROOT / "editors/vscode", source, ignore=left_out)
    made = folder / "edgedec.vsix"
    for command in (
        ["npm", "install", "--no-audit", "--no-fund"],
        ["npm", "run", "package", "--", "--out", str(made)],
    ):
        subprocess.run(command, cwd=source, check=True, timeout=600, capture_output=True)
    return made


@pytest.fixture(scope="module")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed extension."""
    if None in (shutil.which("code-server"), CHROMIUM, shutil.which("npm")):
        pytest.skip("code-server, Chromium or npm is missing: npm install -g code-server")
    return packed(tmp_path_factory.mktemp("vsix"))


@pytest.fixture
def open_project(tmp_path: Path, extension: Path) -> Iterator[Callable[..., str]]:
    """Returns an opener of VS Code, with a server and a bundle, in a folder with one text."""
    server, started = str(shutil.which("code-server")), []
    data, project = tmp_path / "data", tmp_path / "project"

    def begin(run: str, bundle: Path, name: str, text: str, **settings: object) -> str:
        program = project / ".venv/bin/edgedec"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {run} "$@"\n')
        program.chmod(0o755)
        (project / name).write_text(text)
        for place in ("User", "Machine"):  # what names programs and models is of the machine
            (data / place).mkdir(parents=True)
        own = {f"edgedec.{key}": value for key, value in settings.items()}
        (data / "User/settings.json").write_text(json.dumps(SETTINGS | own))
        (data / "Machine/settings.json").write_text(json.dumps({"edgedec.bundle": str(bundle)}))
        places = ["--user-data-dir", str(data), "--extensions-dir", str(tmp_path / "extensions")]
        install = [server, *places, "--install-extension", str(extension)]
        subprocess.run(install, check=True, timeout=300)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        options = ["--auth", "none", "--bind-addr", f"127.0.0.1:{port}", "--disable-telemetry"]
        started.append(subprocess.Popen([server, *places, *options, "--disable-update-check"]))
        return f"http://127.0.0.1:{port}/?folder={project}"

    yield begin
    for running in started:
        running.terminate()
        running.wait()


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    found = Browser(tmp_path / "profile")
    yield found
    found.close()


def text_of(browser: Browser, selector: str) -> str:
    found = f"[...document.querySelectorAll('{selector}')]"
    text = str(browser.run(f"{found}.map(element => element.textContent).join('')"))
    return text.replace("\xa0", " ")


def status(browser: Browser) -> str:
    script = "document.querySelector('.statusbar-item[id^=\"edgedec.edgedec\"]')"
    return str(browser.run(f"{script}?.ariaLabel ?? ''"))


def open_file(browser: Browser, name: str) -> None:
    """Opens a file of the folder as a person does: Ctrl+P, its name, Return."""
    browser.press("KeyP", 80, CONTROL)
    until(lambda: has_focus(browser, ".quick-input-widget"))
    browser.type(name)
    until(lambda: name in text_of(browser, ".quick-input-list .label-name"))
    browser.press(*ENTER)
    until(lambda: name in str(browser.run("document.title")) and "Ln 1, Col 1" in bar(browser))
    until(lambda: has_focus(browser, ".monaco-editor"))


def has_focus(browser: Browser, selector: str) -> bool:
    return bool(browser.run(f"!!document.activeElement?.closest('{selector}')"))


def is_ready(browser: Browser) -> bool:
    """Says whether the model is loaded: what is typed from then on is answered, however late."""
    return "on: " in status(browser)


def test_a_suggestion_is_seen_and_taken(
    open_project: Callable[..., str], smollm2_bundle: Path, browser: Browser
) -> None:
    run = '-c "from edgedec.apps.cli import main; main()"'
    browser.open(open_project(run, smollm2_bundle, "sun.txt", ""))
    until(lambda: is_ready(browser))
    open_file(browser, "sun.txt")
    browser.type(SUN)
    until(lambda: " west" in text_of(browser, GHOST))
    browser.press(*TAB)
    until(lambda: f"{SUN} west" in text_of(browser, ".view-lines"))


def struck(browser: Browser) -> list[str]:
    """Returns the texts that an edit on the screen takes out."""
    script = """[...document.querySelectorAll('.view-line span')]
        .filter(e => !e.children.length)
        .filter(e => getComputedStyle(e).textDecorationLine.includes('line-through'))
        .map(e => e.textContent)"""
    return list(browser.run(script))


def added(browser: Browser) -> list[str]:
    """Returns the texts that an edit on the screen brings."""
    script = """[...document.querySelectorAll('.view-line span')]
        .map(e => getComputedStyle(e, '::after').content).filter(c => c.startsWith('"'))"""
    return [str(text)[1:-1].replace("\xa0", " ") for text in browser.run(script)]


def test_an_edit_is_seen_jumped_to_and_taken(
    open_project: Callable[..., str], known_bundle: Path, browser: Browser
) -> None:
    """With EDGEDEC_PICTURES and a bundle in EDGEDEC_CODER, also takes a picture of that model's."""
    run, bundle, settings = str(KNOWING), known_bundle, {"edit_format": "sweep"}
    if coder := os.environ.get("EDGEDEC_CODER"):
        run, bundle, settings = '-c "from edgedec.apps.cli import main; main()"', Path(coder), {}
    browser.open(open_project(run, bundle, "paint.py", PAINT, **settings))
    browser.ask("Emulation.setDeviceMetricsOverride", **SCREEN)
    until(lambda: is_ready(browser))
    open_file(browser, "paint.py")
    for _ in range(PAINT[: PAINT.index("width")].count("\n")):
        browser.press(*DOWN)
    for _ in range(len("def litres(")):
        browser.press(*RIGHT)
    browser.press(*RIGHT, CONTROL + SHIFT)
    until(lambda: "(5 selected)" in bar(browser))
    browser.type("w")
    until(lambda: (struck(browser), added(browser)) == (["width", "width"], ["w", "w"]))
    if folder := os.environ.get("EDGEDEC_PICTURES"):
        time.sleep(SEEN_S)
        browser.picture(Path(folder) / "vscode.png")
    browser.press(*TAB)
    until(lambda: f"Ln {PAINT[: PAINT.index('if width')].count(chr(10)) + 1}," in bar(browser))
    until(lambda: struck(browser) == ["width", "width"])
    browser.press(*TAB)
    until(lambda: text_of(browser, ".view-lines").count("width") == 0)
    browser.press("KeyZ", 90, CONTROL)
    until(lambda: text_of(browser, ".view-lines").count("width") == 2)  # one step of undo


def bar(browser: Browser) -> str:
    return text_of(browser, ".statusbar-item")
