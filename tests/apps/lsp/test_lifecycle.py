"""How a server begins and ends, the settings it takes, and what it does when things go wrong."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.runtime.engine.replay_buffer import ReplayBuffer

from .conftest import INLINE, Editor, at, span
from .test_server import SUN, inline

Start = Callable[..., Editor]
pytestmark = [pytest.mark.robustness, pytest.mark.slow]
QUICK = {"max_new_tokens": 4, "min_probability": 0}


@pytest.fixture
def bundle(smollm2_bundle: Path, tmp_path: Path) -> Path:
    """A bundle of the test's own."""
    return shutil.copytree(smollm2_bundle, tmp_path / "own.edgedec", copy_function=os.link)


@pytest.mark.slow
def test_editors_without_inline_completion_get_ordinary_one(start: Start, bundle: Path) -> None:
    editor = start(str(bundle))
    reported = editor.begin(capabilities={"general": {"positionEncodings": ["utf-8", "utf-16"]}})
    assert reported["completionProvider"]["triggerCharacters"]
    assert reported["positionEncoding"] == "utf-16"
    assert reported["textDocumentSync"]["change"] == 2
    assert reported["workspace"]["workspaceFolders"]["supported"]
    editor.wait_until_loaded()
    uri = editor.open("🙂 The sun rises in the east and sets in the we")
    found = editor.request("textDocument/completion", at(uri, 0, 47))
    (item,) = found["items"]
    assert found["isIncomplete"]
    assert item["textEdit"]["range"] == span(0, 45, 47)
    assert item["textEdit"]["newText"].startswith("we")
    assert len(item["textEdit"]["newText"]) > 2
    assert item["filterText"] == item["textEdit"]["newText"]
    assert re.fullmatch(r"edgedec, \d+ %", item["detail"])
    assert editor.end() == 0


def test_what_is_supported_is_what_the_editor_knows(start: Start) -> None:
    editor = start()
    reported = editor.begin()
    assert reported["inlineCompletionProvider"] is not None
    assert "completionProvider" not in reported
    editor.wait_for("window/showMessage", "no bundle is set")
    uri = editor.open(SUN)
    assert inline(editor, uri, 0, 3) == []
    assert editor.end() == 0
    both = start().begin(options={"completion": True})
    assert both["completionProvider"]
    assert both["inlineCompletionProvider"] is not None


def test_settings_by_every_way(start: Start, bundle: Path, tmp_path: Path) -> None:
    pull = {"workspace": {"configuration": True}}
    answers = {"workspace/configuration": [{"bundle": "missing.edgedec"}]}
    editor = start("--threads", "1", answers=answers)
    folder = {"uri": tmp_path.as_uri(), "name": "root"}
    editor.begin({**INLINE, **pull}, {"edgedec": {"bundle": "also-missing"}}, [folder])
    editor.wait_for("window/showMessage", "missing.edgedec")
    change = "workspace/didChangeConfiguration"
    editor.notify(change, {"settings": {"edgedec": {"bundel": "x"}}})
    editor.wait_for(
        "window/showMessage", "has the key 'bundel', expected only adapt, bundle, completion"
    )
    editor.notify(change, {"settings": {"edgedec": {**QUICK, "bundle": 7}}})
    editor.wait_for("window/showMessage", "bundle is 7, expected text")
    editor.notify(change, {"settings": {"edgedec": {"session": "\ud800"}}})
    editor.wait_for("window/showMessage", "session is")
    editor.notify(change, {"settings": {"edgedec": {"n_before": 2}}})
    editor.wait_for("window/showMessage", "n_before of autocomplete is 2, expected a whole")
    editor.answers["workspace/configuration"] = [{**QUICK, "bundle": bundle.name}]  # in the root
    editor.notify(change, {"settings": None})
    uri = editor.open("1, 2, 3, 4,")
    ends_s = time.monotonic() + 120
    while not (offered := inline(editor, uri, 0, 11)):
        assert time.monotonic() < ends_s
    assert len(offered[0]) > 2
    settings = {**QUICK, "bundle": str(bundle), "max_new_tokens": 2}
    editor.notify(change, {"settings": {"edgedec": settings}})
    while (shorter := inline(editor, uri, 0, 11)) == offered:
        assert time.monotonic() < ends_s
    assert shorter == [" 5"]
    assert editor.end() == 0


@pytest.mark.slow
def test_a_bundle_that_is_replaced_is_loaded_again(start: Start, bundle: Path) -> None:
    editor = start(str(bundle))
    editor.begin(options=QUICK)
    editor.wait_until_loaded()
    uri = editor.open("1, 2, 3, 4,")
    assert inline(editor, uri, 0, 11)[0].startswith(" 5")
    old = bundle.rename(bundle.with_name("old.edgedec"))
    ask_until(editor, uri, "is gone")
    new = shutil.copytree(old, bundle.with_name("new.edgedec"))
    new.rename(bundle)
    ask_until(editor, uri, "was replaced and is loaded again")
    editor.wait_until_loaded(2)
    assert inline(editor, uri, 0, 11)[0].startswith(" 5")
    (bundle / "manifest.json").write_text("{}")
    ask_until(editor, uri, "manifest: ")
    assert inline(editor, uri, 0, 11)[0].startswith(" 5")
    assert editor.end() == 0


def ask_until(editor: Editor, uri: str, text: str) -> None:
    """Asks until the server says something; what is served meanwhile goes on to be."""
    ends_s = time.monotonic() + 60
    while not editor.found("window/showMessage", text):
        assert time.monotonic() < ends_s, editor.heard
        assert inline(editor, uri, 0, 11)[0].startswith(" 5")


def test_two_editors_at_once(start: Start, bundle: Path) -> None:
    editors = [start(str(bundle)) for _ in range(2)]
    for editor in editors:
        editor.begin(options=QUICK)
    for editor in editors:
        editor.wait_until_loaded()
    asked = [
        (editor, editor.ask("textDocument/inlineCompletion", at(editor.open(SUN), 0, len(SUN))))
        for editor in editors
    ]
    for editor, number in asked:
        (item,) = editor.reply(number)["result"]["items"]
        assert item["insertText"].startswith(" west")
    editors[0].process.kill()
    assert inline(editors[1], editors[1].open(SUN), 0, len(SUN))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["at rest", "within a message", "within a pass", "while it loads"])
def test_an_editor_that_dies(start: Start, bundle: Path, way: str) -> None:
    editor = start(str(bundle))
    editor.begin(options=QUICK)
    process = editor.process
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    if way != "while it loads":
        editor.wait_until_loaded()
    if way == "within a message":
        process.stdin.write(b"Content-Length: 1000\r\n\r\n{")
    if way == "within a pass":
        text = "Words that were never read. " * 30
        editor.ask("textDocument/inlineCompletion", at(editor.open(text), 0, len(text)))
    process.stdin.close()
    assert editor.wait() == 0
    assert b"Traceback" not in process.stderr.read()


def test_an_editor_whose_process_is_gone(start: Start) -> None:
    """Something else may keep the pipe open: then only the process number tells."""
    shell = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    editor = start()
    editor.request("initialize", {"processId": shell.pid, "rootUri": None, "capabilities": {}})
    editor.notify("initialized", {})
    shell.communicate(b"\n")
    assert editor.wait() == 0


def test_a_number_of_another_machine_ends_nothing(start: Start) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    editor = start()
    editor.request("initialize", {"processId": gone.pid, "rootUri": None, "capabilities": {}})
    editor.notify("initialized", {})
    assert editor.end() == 0


def test_error_codes_of_the_protocol(start: Start) -> None:
    """Source: Language Server Protocol 3.18: ServerNotInitialized and InvalidRequest."""
    editor = start()
    early = editor.reply(editor.ask("textDocument/inlineCompletion", at("file:///a.txt", 0, 0)))
    assert early["error"]["code"] == -32002
    assert editor.reply(editor.ask("shutdown", None))["error"]["code"] == -32002
    editor.open("dropped")
    editor.begin()
    again = {"processId": None, "rootUri": None, "capabilities": {}}
    assert editor.reply(editor.ask("initialize", again))["error"]["code"] == -32600
    assert editor.reply(editor.ask("no/such", {}))["error"]["code"] == -32601
    editor.request("shutdown")
    for method in ("shutdown", "textDocument/completion", "initialize"):
        assert editor.reply(editor.ask(method, again))["error"]["code"] == -32600
    editor.open("dropped")
    editor.notify("exit", None)
    assert editor.wait() == 0


def test_an_exit_before_initialize(start: Start) -> None:
    editor = start()
    editor.notify("exit", None)
    assert editor.wait() == 1


def test_an_exit_without_a_shutdown_is_a_failure(start: Start) -> None:
    editor = start()
    editor.begin()
    editor.notify("exit", None)
    assert editor.wait() == 1


@pytest.mark.slow
def test_settings_that_change_within_a_pass(start: Start, bundle: Path) -> None:
    editor = start(str(bundle))
    editor.begin(options=QUICK)
    editor.wait_until_loaded()
    text = "Words that were never read. " * 60
    for n in (3, 5):
        editor.ask("textDocument/inlineCompletion", at(editor.open(text), 0, len(text)))
        settings = {"edgedec": {**QUICK, "max_new_tokens": n}}
        editor.notify("workspace/didChangeConfiguration", {"settings": settings})
        uri = editor.open(SUN)
        assert inline(editor, uri, 0, len(SUN))
    editor.ask("textDocument/inlineCompletion", at(editor.open(text[5:]), 0, len(text) - 5))
    editor.notify("workspace/didChangeConfiguration", {"settings": {"edgedec": QUICK}})
    assert editor.end() == 0
    assert editor.found("window/showMessage", "") is None


def test_what_makes_no_sense_is_a_line_in_the_log(start: Start) -> None:
    editor = start()
    editor.begin()
    editor.change("file:///a.txt", {"text": 1}, {"range": 3, "text": ""})
    editor.send({"id": [], "result": 1})
    assert editor.end() == 0
    assert editor.process.stderr is not None
    reported = " ".join(editor.process.stderr.read().decode().split())
    assert "textDocument/didChange of the editor makes no sense" in reported
    assert "id is [], expected a whole number or a text" in reported
    assert "Traceback" not in reported


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signals_end_it(start: Start, number: signal.Signals) -> None:
    editor = start()
    editor.begin()
    editor.process.send_signal(number)
    assert editor.wait() == 128 + number
    assert editor.process.stderr is not None
    assert b"Traceback" not in editor.process.stderr.read()


def test_a_port_instead_of_pipes(bundle: Path) -> None:
    program = "from edgedec.apps.cli import main; main()"
    server = subprocess.Popen(
        [sys.executable, "-c", program, "lsp", str(bundle), "--tcp", "0"],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.stderr is not None
    port = int(server.stderr.readline().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        body = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"capabilities":{}}}'
        connection.sendall(b"content-length: %d\r\n\r\n%b" % (len(body), body))
        connection.settimeout(60)
        heard = b""
        while b'"name": "edgedec"' not in heard:
            more = connection.recv(65536)
            assert more, heard
            heard += more
    assert server.wait(timeout=60) == 0
    server.stderr.close()


def test_a_port_that_is_taken(bundle: Path) -> None:
    program = "from edgedec.apps.cli import main; main()"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", program, "lsp", str(bundle), "--tcp", port],
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on port {port}: Address already in use" in done.stderr


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pygls.server'] = None\n"
    program += "from edgedec.apps.cli import main; main()"
    ran: Any = subprocess.run(
        [sys.executable, "-c", program, "lsp"],
        capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr.startswith(
        "error: lsp needs pygls.server: pip install 'edgedec-runtime[lsp]'"
    )
    assert ran.stdout == ""


def test_what_is_written_is_kept_if_that_is_asked_for(
    start: Start, bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kept" / "my.replay"
    editor = start(str(bundle), "--adapt", str(path))
    editor.begin(options=QUICK)
    editor.wait_until_loaded()
    uri = editor.open(SUN)
    inline(editor, uri, 0, len(SUN))
    text = SUN + " and so it goes on and on." * 16
    everything = {"textDocument": {"uri": uri, "version": 2}, "contentChanges": [{"text": text}]}
    editor.notify("textDocument/didChange", everything)
    inline(editor, uri, 0, len(text))
    assert editor.end() == 0
    buffer = ReplayBuffer.of_bundle(path, bundle)
    assert len(buffer.numbers()) == 1
    assert not list(bundle.parent.glob(".*.adapt")), "nothing was trained"
