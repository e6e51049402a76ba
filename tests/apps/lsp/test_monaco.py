"""Monaco, the editor component of VS Code, shows in headless Chromium what the server offers."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from .conftest import Editor, at

PAGE = Path(__file__).parent / "monaco"
SUN = "🙂 The sun rises in the east and sets in the"


class Bridge(SimpleHTTPRequestHandler):
    """Serves the page, and hands what it asks to a language server."""

    def __init__(self, *args: Any, editor: Editor, results: queue.Queue[Any], folder: Path) -> None:
        self._editor, self._results = editor, results
        super().__init__(*args, directory=str(folder))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer: Any = {}
        if self.path == "/inline":
            uri = self._editor.open(body["text"])
            asked = at(uri, body["line"], body["character"])
            answer = self._editor.request("textDocument/inlineCompletion", asked)["items"]
        else:
            self._results.put(body)
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        """Tells nobody."""


@contextmanager
def served(handler: Callable[..., Bridge]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.long
def test_ghost_text_in_monaco(
    start: Callable[..., Editor], smollm2_bundle: Path, tmp_path: Path
) -> None:
    chromium = shutil.which("chromium")
    if chromium is None or shutil.which("npm") is None:
        pytest.skip("there is no chromium, or no npm: apt-get install chromium npm")
    folder = tmp_path / "monaco"
    shutil.copytree(PAGE, folder)
    for command in (["npm", "install", "--no-audit", "--no-fund"], ["npm", "run", "build"]):
        subprocess.run(command, cwd=folder, check=True, timeout=600, capture_output=True)
    editor = start(str(smollm2_bundle), "-n", "8", "--min-probability", "0")
    editor.begin()
    editor.wait_until_loaded()
    results: queue.Queue[Any] = queue.Queue()
    bridge = partial(Bridge, editor=editor, results=results, folder=folder)
    with served(bridge) as port:
        browser = subprocess.Popen(
            [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             f"--user-data-dir={tmp_path / 'profile'}",
             f"http://127.0.0.1:{port}/page.html#{quote(SUN)}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            found = results.get(timeout=120)
        finally:
            browser.terminate()
            browser.wait(60)
    assert found.get("error") is None
    assert found["shown"].startswith(" west")
    assert found["unchanged"]  # ghost text is no text
    assert found["taken"] == SUN + found["shown"]
