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

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
SUN = "The sun rises in the east and sets in the"
PATIENCE_S = 240
TAB, ENTER, BACKSPACE = ("Tab", 9), ("Enter", 13), ("Backspace", 8)
CONTROL = 2
GHOST = ".ghost-text, .ghost-text-decoration, .ghost-text-decoration-preview"
SEEN_S = 3
SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Dark Modern",
    "security.workspace.trust.enabled": False,
    "window.menuBarVisibility": "hidden",
    "workbench.activityBar.location": "hidden",
    "editor.minimap.enabled": False,
    "editor.wordWrap": "on",
    "editor.wordBasedSuggestions": "off",
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


@pytest.fixture
def editor(tmp_path: Path, smollm2_bundle: Path) -> Iterator[str]:
    """Returns the address of VS Code with the extension and a folder with one text."""
    server = shutil.which("code-server")
    if server is None or CHROMIUM is None or shutil.which("npm") is None:
        pytest.skip("code-server, Chromium or npm is missing: npm install -g code-server")
    data, project = tmp_path / "data", tmp_path / "project"
    for place in ("User", "Machine"):  # what names programs and models is of the machine
        (data / place).mkdir(parents=True)
    program = project / ".venv/bin/edgedec"
    program.parent.mkdir(parents=True)
    main = "from edgedec.apps.cli import main; main()"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{main}" "$@"\n')
    program.chmod(0o755)
    (project / "sun.txt").write_text("")
    bundle = project / "smollm2.edgedec"
    bundle.symlink_to(smollm2_bundle)
    (data / "User/settings.json").write_text(json.dumps(SETTINGS))
    (data / "Machine/settings.json").write_text(json.dumps({"edgedec.bundle": str(bundle)}))
    places = ["--user-data-dir", str(data), "--extensions-dir", str(tmp_path / "extensions")]
    made = packed(tmp_path)
    subprocess.run([server, *places, "--install-extension", str(made)], check=True, timeout=300)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = ["--auth", "none", "--bind-addr", f"127.0.0.1:{port}", "--disable-telemetry"]
    running = subprocess.Popen([server, *places, *own, "--disable-update-check"])
    yield f"http://127.0.0.1:{port}/?folder={project}"
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
    until(lambda: bool(browser.run("!!document.querySelector('.quick-input-widget input')")))
    browser.type(name)
    until(lambda: name in text_of(browser, ".quick-input-list .label-name"))
    browser.press(*ENTER)
    until(lambda: name in str(browser.run("document.title")))


def suggestion(browser: Browser) -> str:
    """Returns what is on offer; types the last letter again if the model came after it."""
    if not (found := text_of(browser, GHOST)):
        browser.press(*BACKSPACE)
        browser.type(SUN[-1])
        time.sleep(SEEN_S)
    return found or text_of(browser, GHOST)


def test_a_suggestion_is_seen_and_taken(editor: str, browser: Browser) -> None:
    browser.open(editor)
    until(lambda: "edgedec" in status(browser) and "choose" not in status(browser))
    open_file(browser, "sun.txt")
    browser.type(SUN)
    until(lambda: " west" in suggestion(browser))
    if folder := os.environ.get("EDGEDEC_PICTURES"):
        browser.picture(Path(folder) / "vscode.png")
    browser.press(*TAB)
    until(lambda: f"{SUN} west" in text_of(browser, ".view-lines"))
