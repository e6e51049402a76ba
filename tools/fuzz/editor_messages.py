"""Odd messages to the language server: every request has one answer, and the next ones a right one.

    python tools/fuzz/editor_messages.py --tries 2000 --seconds 500

A try is one editor's session over a tiny bundle: some ten messages about documents, positions and
settings that are right, nearly right or nonsense. Called again it goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
import tempfile
from collections import Counter
from contextlib import chdir
from pathlib import Path
from typing import Any

from pieces import run_tries
from tiny import make_bundle

from edgedec.apps.lsp.server import EdgedecServer
from edgedec.apps.lsp.settings import ServerSettings

LONGEST_S = 60
INTERNAL_ERROR = -32603
Message = dict[str, Any]

TEXTS = [
    "", "def f(x):\n    return x", "a\r\nb\rc\n", "\U0001f600" * 5, "\u00e9\0\u2028x", "\ud83d",
    "\x1b[31m", "x" * 50_000, "line\n" * 3000, "{{ x }}<|im_start|>",
]  # fmt: skip
ODD = [
    None, -1, 0, 1, 2**31, 2**63, 2**70, -(2**63), 1.5, 1e308, True, "", "a", [], {}, [[]],
    {"a": 1}, "\ud800", float("nan"),
]  # fmt: skip
URIS = [
    "file:///a.txt", "file:///a.txt", "file:///b.txt", "", "untitled:1", "x", "file:///%ff%zz",
    "\ud800",
]  # fmt: skip
NO_MESSAGES = [
    b"{", b"\xff\xfe", b"[]", b"", b"[" * 100_000, b'{"jsonrpc":"2.0","id":1}', b"null", b'"a"',
    b'[{"jsonrpc":"2.0","id":7,"method":"shutdown"}]',
]  # fmt: skip
RIGHT = {"min_probability": 0, "n_after": 16, "max_new_tokens": 8}
"""Settings with which a tiny bundle always has something on offer."""
SETTINGS = [
    *RIGHT, "bundle", "threads", "context", "completion", "learn", "session", "max_idle_cpu",
    "nothing",
]  # fmt: skip
OTHER_REQUESTS = ("x", "initialize", "textDocument/hover", "workspace/executeCommand")
OTHER_NOTES = (
    "x", "initialized", "$/setTrace", "textDocument/didSave", "$/progress",
    "workspace/didChangeWorkspaceFolders", "window/workDoneProgress/cancel",
    "notebookDocument/didOpen",
)  # fmt: skip


class Messages:
    """Makes an editor's messages, by a generator of random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def next(self, number: int) -> object:
        """Returns a message; ``number`` is its own, where it asks something."""
        make = self._rng.choice(
            [
                *(self._ask, self._ask, self._ask, self._change, self._change, self._open),
                *(self._close, self._configure, self._cancel, self._answer, self._other),
            ]
        )
        message = make(number)
        if self._rng.random() < 0.04:
            message[self._rng.choice(list(message))] = self._odd()
        return message if self._rng.random() < 0.98 else self._odd()

    def _odd(self) -> object:
        return self._rng.choice(ODD)

    def _or_odd(self, usual: object, share: float = 0.05) -> object:
        return self._odd() if self._rng.random() < share else usual

    def _position(self) -> object:
        line = self._rng.choice([0, 0, 1, 2, 5, 100, 2**31 - 1, -1])
        character = self._rng.choice([0, 1, 2, 3, 10, 1000, 2**31 - 1, -1])
        return self._or_odd({"line": self._or_odd(line), "character": self._or_odd(character)})

    def _document(self, **more: object) -> object:
        return self._or_odd({"uri": self._or_odd(self._rng.choice(URIS)), "version": 1, **more})

    def _open(self, number: int) -> Message:
        text = self._or_odd(self._rng.choice(TEXTS))
        document = self._document(languageId="x", text=text)
        return {"method": "textDocument/didOpen", "params": {"textDocument": document}}

    def _change(self, number: int) -> Message:
        changes = [self._or_odd(self._edit()) for _ in range(self._rng.randrange(4))]
        params = {"textDocument": self._document(), "contentChanges": self._or_odd(changes)}
        return {"method": "textDocument/didChange", "params": params}

    def _edit(self) -> Message:
        text = {"text": self._or_odd(self._rng.choice(TEXTS))}
        if self._rng.random() < 0.2:
            return text
        return {"range": {"start": self._position(), "end": self._position()}, **text}

    def _ask(self, number: int) -> Message:
        kind = self._rng.choice(["inlineCompletion", "inlineCompletion", "completion"])
        context = self._or_odd({"triggerKind": self._rng.choice([1, 2])})
        place = {"textDocument": self._document(), "position": self._position()}
        method = f"textDocument/{kind}"
        return {"id": number, "method": method, "params": {**place, "context": context}}

    def _close(self, number: int) -> Message:
        return {
            "method": "textDocument/didClose",
            "params": {"textDocument": self._document()},
        }

    def _configure(self, number: int) -> Message:
        name = self._rng.choice(SETTINGS)
        usual = {"edgedec": {name: self._or_odd(self._rng.choice([1, 3, 0.5]), 0.6)}}
        return {
            "method": "workspace/didChangeConfiguration",
            "params": {"settings": self._or_odd(usual, 0.2)},
        }

    def _cancel(self, number: int) -> Message:
        number_ = self._rng.choice([number - 1, number - 2, number, "x", self._odd()])
        return {"method": "$/cancelRequest", "params": {"id": number_}}

    def _answer(self, number: int) -> Message:
        kind = self._rng.choice(["result", "error"])
        return {"id": self._or_odd(number - 1, 0.5), kind: self._odd()}

    def _other(self, number: int) -> Message:
        if self._rng.random() < 0.5:
            return {"method": self._rng.choice(OTHER_NOTES), "params": self._odd()}
        return {"id": number, "method": self._rng.choice(OTHER_REQUESTS), "params": self._odd()}


class Editor:
    """Speaks with a server in this event loop, and keeps all that it says."""

    def __init__(self, bundle: Path) -> None:
        settings = ServerSettings(bundle=str(bundle)).changed_by(RIGHT)
        self._reader = asyncio.StreamReader()
        self._said = b""
        self.requests: Counter[str] = Counter()
        self.serving = asyncio.create_task(EdgedecServer(settings, "0").serve(self._reader, self))

    def write(self, data: bytes) -> None:
        """Takes what the server says."""
        self._said += data

    def close(self) -> None:
        """As a writer has it."""

    def send(self, message: object) -> None:
        """Sends a message, and counts it if it has to be answered."""
        if isinstance(message, dict):
            if type(message.get("id")) in (int, str) and "method" in message:
                self.requests[json.dumps(message["id"])] += 1
            message = {"jsonrpc": "2.0", **message}
        self.send_bytes(json.dumps(message).encode())

    def send_bytes(self, body: bytes) -> None:
        """Sends what need not be a message."""
        self._reader.feed_data(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    @property
    def heard(self) -> list[Message]:
        """All that the server said."""
        parts = self._said.split(b"Content-Length: ")[1:]
        return [json.loads(part.partition(b"\r\n\r\n")[2]) for part in parts]

    async def request(self, number: int, method: str, params: object) -> Any:
        """Returns the result of a request."""
        self.send({"id": number, "method": method, "params": params})
        while True:
            await asyncio.sleep(0.002)
            for message in self.heard:
                if message.get("id") == number and "method" not in message:
                    return message["result"]

    async def wait_for_offer(self, number: int) -> None:
        """Asks until something is offered."""
        uri = f"file:///{number}.py"
        document = {"uri": uri, "languageId": "x", "version": 1, "text": "def add(a, b):"}
        self.send({"method": "textDocument/didOpen", "params": {"textDocument": document}})
        place = {"textDocument": {"uri": uri}, "position": {"line": 0, "character": 14}}
        params = {**place, "context": {"triggerKind": 1}}
        while not (await self.request(number, "textDocument/inlineCompletion", params))["items"]:
            number += 1


async def talk(number: int, bundle: Path) -> None:
    """One session; raises ValueError where the server is not as it should be."""
    rng = random.Random(number)
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, failure: failures.append(failure))
    editor, messages = Editor(bundle), Messages(rng)
    await editor.request(1, "initialize", {"processId": None, "rootUri": None, "capabilities": {}})
    editor.send({"method": "initialized", "params": {}})
    if rng.random() < 0.8:
        await editor.wait_for_offer(10_000)
    for at in range(rng.randrange(5, 40)):
        if rng.random() < 0.03:
            editor.send_bytes(rng.choice(NO_MESSAGES))
        editor.send(messages.next(1000 + at))
        await asyncio.sleep(rng.choice([0, 0, 0, 0.01, 0.05]))
    params = {"settings": {"edgedec": {"bundle": str(bundle), **RIGHT}}}
    editor.send({"method": "workspace/didChangeConfiguration", "params": params})
    await editor.wait_for_offer(20_000)
    await editor.request(2, "shutdown", None)
    editor.send({"method": "exit"})
    code = await editor.serving
    if code or failures:
        raise ValueError(f"ended with {code}: {failures}")
    check(editor)


def check(editor: Editor) -> None:
    """Raises ValueError unless each request had an answer, and no answer is a fault of ours."""
    heard = editor.heard
    answered = Counter(json.dumps(message["id"]) for message in heard if "method" not in message)
    if missing := editor.requests - answered:
        raise ValueError(f"without an answer: {missing}")
    for message in heard:
        code = (message.get("error") or {}).get("code")
        text = json.dumps(message)
        if code == INTERNAL_ERROR or "unexpected" in text or "Error in server" in text:
            raise ValueError(text)


def check_some(first: int, n: int) -> int:
    """Tries ``n`` sessions; raises SystemExit at one whose server is not as it should be."""
    logging.getLogger("pygls").setLevel(logging.CRITICAL)  # as `edgedec lsp` does
    logging.getLogger("edgedec").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name, chdir(name):  # settings may name folders
        bundle = make_bundle(Path(name))
        for number in range(first, first + n):
            try:
                asyncio.run(asyncio.wait_for(talk(number, bundle), LONGEST_S))
            except (ValueError, KeyError, TimeoutError) as error:
                raise SystemExit(f"{number}: {type(error).__name__}: {error}") from error
    return n


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "editor_messages", 2000, lambda n_done: check_some(n_done, 20)))
