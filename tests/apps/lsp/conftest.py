"""An editor at the other end of a real server's pipes, as simple as one can be."""

from __future__ import annotations

import itertools
import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls")

PROGRAM = [sys.executable, "-c", "from edgedec.apps.cli import main; main()", "lsp"]
INLINE = {"textDocument": {"inlineCompletion": {}}}
Message = dict[str, Any]


def hear_hangups() -> None:
    """To be called in a child: the jobs of `nohup` ignore hangups."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Editor:
    """Speaks JSON-RPC with a process; answers its requests with ``answers`` by method, or null."""

    def __init__(
        self,
        *arguments: str,
        answers: dict[str, Any] | None = None,
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self.process = subprocess.Popen(
            [*program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=hear_hangups if hasattr(signal, "SIGHUP") else None,
        )
        self.answers = answers or {}
        self.heard: list[Message] = []
        self._replies: dict[int, queue.Queue[Message]] = {}
        self._ids = itertools.count(1)
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def send(self, message: Message) -> None:
        self.send_raw(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_raw(self, body: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def ask(self, method: Any, params: Any) -> int:
        """Sends a request; returns its number."""
        number = next(self._ids)
        self._replies[number] = queue.Queue()
        self.send({"id": number, "method": method, "params": params})
        return number

    def reply(self, number: int) -> Message:
        return self._replies[number].get(timeout=60)

    def request(self, method: str, params: Any = None) -> Any:
        reply = self.reply(self.ask(method, params))
        assert "error" not in reply, reply
        return reply["result"]

    def wait_for(self, method: str, text: str = "") -> Message:
        """Returns the parameters of the first message of a kind that has ``text`` in it."""
        with self._news:
            found = self._news.wait_for(lambda: self.found(method, text), 60)
        assert found, (method, text, self.heard)
        return found

    def found(self, method: str, text: str) -> Message | None:
        for message in self.heard:
            if message["method"] == method and text in json.dumps(message):
                return {"is_here": True, **(message.get("params") or {})}
        return None

    def begin(
        self, capabilities: Message = INLINE, options: Any = None, folders: Any = None
    ) -> Message:
        """Goes through the beginning; returns what the server can do."""
        window = {"window": {"workDoneProgress": True}}
        params = {
            "processId": None,
            "rootUri": None,
            "capabilities": {**window, **capabilities},
            "initializationOptions": options,
            "workspaceFolders": folders,
        }
        reported = self.request("initialize", params)
        self.notify("initialized", {})
        return reported["capabilities"]

    @property
    def n_loaded(self) -> int:
        return sum('"end"' in json.dumps(message) for message in self.heard)

    def wait_until_loaded(self, n: int = 1) -> None:
        with self._news:
            assert self._news.wait_for(lambda: self.n_loaded >= n, 60), self.heard

    def open(self, text: str, uri: str = "file:///a.txt") -> str:
        item = {"uri": uri, "languageId": "plaintext", "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def change(self, uri: str, *changes: Message) -> None:
        document = {"uri": uri, "version": 2}
        self.notify("textDocument/didChange", {"textDocument": document, "contentChanges": changes})

    def end(self) -> int:
        self.request("shutdown")
        self.notify("exit", None)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(timeout=60)
        self._thread.join(60)
        return code

    def _listen(self) -> None:
        out = self.process.stdout
        assert out is not None
        while line := out.readline():
            length = int(line.split(b":")[1])
            while out.readline().strip():
                pass
            message = json.loads(out.read(length))
            if "method" not in message:
                self._replies[message["id"]].put(message)
                continue
            with self._news:
                self.heard.append(message)
                self._news.notify_all()
            if "id" in message:
                self.send({"id": message["id"], "result": self.answers.get(message["method"])})


AUTOMATIC, INVOKED = 2, 1
"""Why an editor asks: somebody types, or has asked for a suggestion by a key."""


def at(uri: str, line: int, character: int, kind: int = AUTOMATIC) -> Message:
    return {
        "textDocument": {"uri": uri},
        "position": {"line": line, "character": character},
        "context": {"triggerKind": kind},
    }


def span(line: int, start: int, end: int) -> Message:
    return {
        "start": {"line": line, "character": start},
        "end": {"line": line, "character": end},
    }


@pytest.fixture
def start() -> Iterator[Callable[..., Editor]]:
    """Returns a starter of servers, which are ended behind the test."""
    editors = []

    def begin(*arguments: str, **options: Any) -> Editor:
        editors.append(Editor(*arguments, **options))
        return editors[-1]

    yield begin
    for editor in editors:
        editor.process.kill()
        editor.process.wait()


@pytest.fixture(scope="module")
def editor(smollm2_bundle: Path) -> Iterator[Editor]:
    """An editor whose server has SmolLM2 loaded, and has ended well after the last test."""
    editor = Editor(str(smollm2_bundle), "-n", "12", "--min-probability", "0")
    editor.begin()
    editor.wait_until_loaded()
    yield editor
    assert editor.end() == 0


KNOWING = Path(__file__).parent / "knowing_server.py"


@pytest.fixture(scope="session")
def known_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that `KNOWING` takes for a bundle."""
    folder = tmp_path_factory.mktemp("bundles") / "known.edgedec"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def knowing(known_bundle: Path) -> Iterator[Editor]:
    """An editor whose server's model knows by heart which edits follow."""
    editor = Editor(
        str(known_bundle), "--min-probability", "1", program=[sys.executable, str(KNOWING)]
    )
    editor.begin(options={"edit_format": "sweep", "n_others": 0})
    yield editor
    assert editor.end() == 0
