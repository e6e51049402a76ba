"""The command itself: what it says, what it refuses, how it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

NEVER_ENDS = """
import time
from edgedec.apps.serve import command
from edgedec.runtime.engine.stream import Stream
command._END_S = 0.5
Stream.write = lambda self, take: time.sleep(3600)
"""


class Program:
    """`edgedec serve` in a process of its own."""

    def __init__(self, *arguments: object, before: str = "") -> None:
        """before: code that the process runs first."""
        code = f"{before}\nfrom edgedec.apps.cli import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, "serve", *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stderr is not None
        self.line = self.process.stderr.readline()
        self.port = int(re.search(r":(\d+)$", self.line)[1])  # type: ignore[index]

    def connection(self) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", self.port, timeout=60)

    def end(self, number: int) -> tuple[int, str]:
        """Returns the exit code, and what was written besides the first line."""
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()  # `communicate` leaves out what was read ahead


@pytest.fixture
def program(smollm2_bundle: Path) -> Iterator[Program]:
    found = Program(smollm2_bundle)
    yield found
    found.process.kill()
    found.process.communicate()


def ask_for_long(connection: HTTPConnection, **fields: Any) -> None:
    message = {"role": "user", "content": "Tell me a SECRETWORD story."}
    body = {"messages": [message], "max_tokens": 8000, **fields}
    connection.request("POST", "/v1/chat/completions", json.dumps(body))


def test_it_says_where_it_is(program: Program) -> None:
    assert program.line == f"serving smollm2 on http://127.0.0.1:{program.port}\n"
    connection = program.connection()
    connection.request("GET", "/health")
    assert connection.getresponse().status == 200


def test_conversations_are_saved_when_it_ends_and_continued_by_the_next(
    smollm2_bundle: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "sessions"
    remarks: list[str] = []
    messages = [{"role": "user", "content": "Count from one to forty. " * 12}]

    def answer(messages: list[dict[str, str]]) -> tuple[str, int]:
        program = Program(smollm2_bundle, "--sessions", folder)
        connection = program.connection()
        body = {"messages": messages, "max_tokens": 24, "temperature": 0}
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        found = json.loads(connection.getresponse().read())
        code, remark = program.end(signal.SIGTERM)
        assert code == 143
        remarks.append(remark)
        text: str = found["choices"][0]["message"]["content"]
        return text, found["usage"]["prompt_tokens_details"]["cached_tokens"]

    text, n_cached = answer(messages)
    assert n_cached == 0
    assert folder.stat().st_mode & 0o077 == 0
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "Go on."}]
    again, n_cached = answer(messages)
    assert n_cached >= 64
    for path in folder.iterdir():
        path.unlink()
    assert answer(messages) == (again, 0)
    assert f"{folder} keeps what the model read" in remarks[0]
    assert remarks[1:] == ["", ""]


def test_a_folder_of_sessions_that_others_may_read(smollm2_bundle: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    code = "from edgedec.apps.cli import main; main()"
    command = [sys.executable, "-c", code, "serve", smollm2_bundle, "--sessions"]
    found = subprocess.run([*command, tmp_path], capture_output=True, text=True, timeout=60)
    assert found.returncode == 1
    assert "others may look into" in found.stderr
    found = subprocess.run(
        [*command, tmp_path, "--prefix-disk", "0"], capture_output=True, text=True, timeout=60
    )
    assert "leave out --sessions" in found.stderr
    (tmp_path / "file").touch()
    found = subprocess.run(
        [*command, tmp_path / "file" / "x"], capture_output=True, text=True, timeout=60
    )
    assert "cannot make the folder" in found.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it(program: Program, number: int, code: int) -> None:
    assert program.end(number) == (code, "")


def test_a_signal_ends_answers_in_progress(program: Program) -> None:
    connection = program.connection()
    ask_for_long(connection, stream=True)
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    code, log = program.end(signal.SIGINT)
    assert (code, log) == (130, "")
    rest = response.read().decode()
    assert '"type":"unavailable_error"' in rest
    assert "[DONE]" not in rest


def test_a_signal_ends_requests_that_are_still_coming(program: Program) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    with socket.create_connection(("127.0.0.1", program.port), timeout=60) as coming:
        coming.sendall(head)
        connection = program.connection()
        connection.request("GET", "/health")  # the first request has been seen by then
        assert connection.getresponse().status == 200
        assert program.end(signal.SIGTERM) == (143, "")
        assert b" 503 " in coming.recv(65536)


def test_a_signal_ends_answers_that_nobody_reads(program: Program) -> None:
    with socket.socket() as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        deaf.connect(("127.0.0.1", program.port))
        deaf.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000)
        assert deaf.recv(1) == b"H"
        assert program.end(signal.SIGTERM) == (143, "")


def test_a_signal_ends_it_though_a_model_never_answers(smollm2_bundle: Path) -> None:
    program = Program(smollm2_bundle, before=NEVER_ENDS)
    connection = program.connection()
    ask_for_long(connection, stream=True)
    assert connection.getresponse().status == 200
    said = "a task did not end within 0.5 s of the signal; exiting anyway\n"
    assert program.end(signal.SIGTERM) == (143, said)


def test_a_port_that_is_taken(cli: Any, smollm2_bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        outcome = cli("serve", smollm2_bundle, "--port", port)
    assert f"cannot listen on 127.0.0.1 port {port}" in outcome.error


def test_other_machines_are_not_let_in_by_accident(cli: Any, smollm2_bundle: Path) -> None:
    assert (
        "give a key by --api-key-file FILE"
        in cli("serve", smollm2_bundle, "--host", "0.0.0.0").error
    )


def test_what_is_no_bundle(cli: Any, tmp_path: Path, smollm2_bundle: Path) -> None:
    assert "manifest" in cli("serve", tmp_path).error
    twice = cli("serve", f"a={smollm2_bundle}", f"a={smollm2_bundle}")
    assert "two models are called a" in twice.error


def test_nothing_to_serve(cli: Any) -> None:
    assert "there is no model to serve" in cli("serve").error


def test_without_the_extra_it_says_what_to_install(smollm2_bundle: Path) -> None:
    code = "import sys; sys.modules['uvicorn'] = None\nfrom edgedec.apps.cli import main; main()"
    arguments = [sys.executable, "-c", code, "serve", str(smollm2_bundle)]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stderr == "error: serve needs uvicorn: pip install 'edgedec-runtime[serve]'\n"
