"""Two servers behind a balancer, one of which is killed under load.

    python tools/serving/kill_one.py smollm2.edgedec --balancer haproxy

It needs `haproxy` or `nginx`. Requests that the killed server was answering are lost, and no
others: every request that begins later is answered, and every answer is that of a server alone.
The balancer's log says which server had each request.
"""

from __future__ import annotations

import argparse
import json
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

HERE = Path(__file__).parent
CONFIGS = {"haproxy": "haproxy.cfg", "nginx": "nginx.conf"}
LOGGED = {  # lines of the configuration, and what is put in their place: number and server
    "haproxy": {
        "    mode http\n": '    mode http\n    log-format "%[capture.req.hdr(0)] %si:%sp"\n',
        "    default_backend servers\n": "    default_backend servers\n    log global\n"
        "    http-request capture req.hdr(X-Number) len 16\n",
        "global\n": "global\n    log stdout format raw daemon\n",
    },
    "nginx": {
        "    access_log off;\n": "    log_format who '$http_x_number $upstream_addr';\n"
        "    access_log /dev/stdout who;\n"
    },
}
N_CLIENTS, N_TOKENS, WAIT_S = 8, 24, 60


@dataclass(frozen=True)
class Outcome:
    """What became of a request. text: of its answer, None if it was lost. Times: in seconds."""

    number: int
    prompt: str
    began_s: float
    text: str | None


def main() -> int:
    """Returns 0 if no request was lost but those of the killed server."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--balancer", choices=CONFIGS, default="haproxy")
    parser.add_argument("--requests", type=int, default=120)
    options = parser.parse_args()
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(options.bundle)) for _ in range(2)]
        ports = [port for _, port in servers]
        port, served = stack.enter_context(balancing(options.balancer, ports))
        expected = {prompt_of(i): ask(ports[0], i).text for i in range(8)}
        outcomes, kill = under_load(port, servers, options.requests)
    return judge(outcomes, kill, served, expected)


@dataclass(frozen=True)
class Kill:
    """Which server was killed when, and how many requests it was answering just before."""

    port: int
    at_s: float
    n_open: int


def judge(
    outcomes: list[Outcome], kill: Kill, served: dict[int, int], expected: dict[str, str | None]
) -> int:
    """Prints what became of the requests; returns 0 if all is as it has to be.

    served: which server's port each request went to, by its number.
    """
    lost = [outcome for outcome in outcomes if outcome.text is None]
    late = [outcome for outcome in lost if outcome.began_s > kill.at_s]
    others = [outcome for outcome in lost if served.get(outcome.number) != kill.port]
    wrong = [
        outcome for outcome in outcomes if outcome.text not in (None, expected[outcome.prompt])
    ]
    n_after = sum(outcome.began_s > kill.at_s for outcome in outcomes)
    print(
        f"{len(outcomes)} requests, {n_after} of them after the kill; the killed server was "
        f"answering {kill.n_open}; lost: {len(lost)}, of another server: {len(others)}, "
        f"begun after the kill: {len(late)}; wrong texts: {len(wrong)}"
    )
    return int(bool(late or others or wrong) or n_after == 0)


def prompt_of(number: int) -> str:
    """Returns one of eight prompts."""
    return f"Count from {number % 8} to ten:"


def under_load(
    port: int, servers: Sequence[tuple[subprocess.Popen[str], int]], n: int
) -> tuple[list[Outcome], Kill]:
    """Returns what became of the requests, and which server was killed.

    The one that has most open is killed: where prompts decide on the server, one may have none.
    """
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        jobs = [pool.submit(ask, port, i) for i in range(n)]
        wait_for(lambda: sum(job.done() for job in jobs) > n // 3)
        wait_for(lambda: any(n_processing(port) for _, port in servers))
        n_open, own_port, victim = max(
            ((n_processing(port), port, process) for process, port in servers),
            key=lambda outcome: outcome[0],
        )
        victim.kill()
        victim.wait()
        kill = Kill(own_port, time.monotonic(), n_open)
        return [job.result() for job in jobs], kill


def ask(port: int, number: int) -> Outcome:
    """Asks for a streamed answer, whole or lost."""
    began_s, prompt = time.monotonic(), prompt_of(number)
    headers = {"Host": "localhost", "X-Number": str(number)}
    body = {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": 0, "stream": True}
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, HTTPException):
        return Outcome(number, prompt, began_s, None)
    finally:
        connection.close()
    if response.status != 200 or "data: [DONE]" not in text:
        return Outcome(number, prompt, began_s, None)
    pieces = [json.loads(part[6:]) for part in text.split("\n\n") if part.startswith("data: {")]
    return Outcome(
        number, prompt, began_s, "".join(piece["choices"][0]["text"] for piece in pieces)
    )


def n_processing(port: int) -> int:
    """Returns how many requests a server is answering."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", "/metrics", headers={"Host": "localhost"})
    text = connection.getresponse().read().decode()
    connection.close()
    match = re.search(r"^edgedec:requests_processing (\S+)", text, re.MULTILINE)
    assert match is not None
    return int(float(match[1]))


@contextmanager
def serving(bundle: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Runs a server; yields its process and port."""
    command = [str(Path(sys.executable).with_name("edgedec")), "serve", f"model={bundle}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--threads", "1"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        threading.Thread(target=process.stderr.read, daemon=True).start()
        match = re.search(r":(\d+)\s*$", line)
        assert match is not None, line
        yield process, int(match[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


@contextmanager
def balancing(name: str, ports: list[int]) -> Iterator[tuple[int, dict[int, int]]]:
    """Runs the balancer over servers at ``ports``; yields its own port, and where requests went.

    The latter is known at the end: the number of each request, and the port of its server.
    """
    served: dict[int, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        text = (HERE / CONFIGS[name]).read_text()
        for known, own_port in zip(("8080", "8081", "8082"), (port, *ports), strict=True):
            text = text.replace(f"127.0.0.1:{known}", f"127.0.0.1:{own_port}")
        for line, logged in LOGGED[name].items():
            assert line in text, line
            text = text.replace(line, logged)
        config = Path(folder, CONFIGS[name])
        config.write_text(text)
        own_port = ["-p", folder, "-g", f"daemon off; pid {folder}/pid;", "-c"]
        flags = {"haproxy": ["-db", "-f"], "nginx": own_port}[name]
        command = [name, *flags, str(config)]
        log = Path(folder, "log")
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: ask(port, 0).text is not None)
            yield port, served
        finally:
            process.terminate()
            process.wait(WAIT_S)
            lines = re.findall(r"^(\d+) .*:(\d+)$", log.read_text(), re.MULTILINE)
            served.update((int(number), int(server)) for number, server in lines)


def free_port() -> int:
    """Returns a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until ``condition`` holds.

    Raises:
        TimeoutError: It never did.
    """
    end_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError("it never came to that")
        time.sleep(0.01)


if __name__ == "__main__":
    raise SystemExit(main())
