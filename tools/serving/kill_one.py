"""Two servers behind a balancer, one of which is killed under load.

    python tools/serving/kill_one.py smollm2.edgedec --balancer haproxy

It needs `haproxy` or `nginx`. Requests that the killed server was answering are lost, and no
others: every request that begins later is answered, and every answer is that of a server alone.
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
N_CLIENTS, N_TOKENS, WAIT_S = 8, 24, 60


@dataclass(frozen=True)
class Outcome:
    """What became of a request. text: of its answer, None if it was lost. Times: in seconds."""

    prompt: str
    began_s: float
    text: str | None


def main() -> int:
    """Returns 0 if no request was lost but those of the killed server."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--balancer", choices=CONFIGS, default="haproxy")
    parser.add_argument("--requests", type=int, default=120)
    given = parser.parse_args()
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(given.bundle)) for _ in range(2)]
        port = stack.enter_context(balancing(given.balancer, [port for _, port in servers]))
        wanted = {prompt: ask(servers[0][1], prompt).text for prompt in map(prompt_of, range(8))}
        outcomes, killed_s, n_open = under_load(port, servers, given.requests)
    return judge(outcomes, killed_s, n_open, wanted)


def judge(
    outcomes: list[Outcome], killed_s: float, n_open: int, wanted: dict[str, str | None]
) -> int:
    """Prints what became of the requests; returns 0 if all is as it has to be."""
    lost = [one for one in outcomes if one.text is None]
    late = [one for one in lost if one.began_s > killed_s]
    wrong = [one for one in outcomes if one.text not in (None, wanted[one.prompt])]
    n_after = sum(one.began_s > killed_s for one in outcomes)
    print(
        f"{len(outcomes)} requests, {n_after} of them after the kill; the killed server was "
        f"answering {n_open}; lost: {len(lost)}, begun after the kill: {len(late)}; "
        f"wrong texts: {len(wrong)}"
    )
    return int(bool(late or wrong) or n_after == 0)


def prompt_of(number: int) -> str:
    """Returns one of eight prompts."""
    return f"Count from {number % 8} to ten:"


def under_load(
    port: int, servers: Sequence[tuple[subprocess.Popen[str], int]], n: int
) -> tuple[list[Outcome], float, int]:
    """Returns what became of the requests, when a server was killed, and how many it had open.

    The one that has most open is killed: where prompts decide on the server, one may have none.
    """
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        jobs = [pool.submit(ask, port, prompt_of(i)) for i in range(n)]
        wait_for(lambda: sum(job.done() for job in jobs) > n // 3)
        wait_for(lambda: any(n_processing(port) for _, port in servers))
        n_open, victim = max(
            ((n_processing(port), process) for process, port in servers), key=lambda one: one[0]
        )
        victim.kill()
        victim.wait()
        killed_s = time.monotonic()
        return [job.result() for job in jobs], killed_s, n_open


def ask(port: int, prompt: str) -> Outcome:
    """Asks for a streamed answer, whole or lost."""
    began_s = time.monotonic()
    body = {"prompt": prompt, "max_tokens": N_TOKENS, "temperature": 0, "stream": True}
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"Host": "localhost"})
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, HTTPException):
        return Outcome(prompt, began_s, None)
    finally:
        connection.close()
    if response.status != 200 or "data: [DONE]" not in text:
        return Outcome(prompt, began_s, None)
    pieces = [json.loads(part[6:]) for part in text.split("\n\n") if part.startswith("data: {")]
    return Outcome(prompt, began_s, "".join(piece["choices"][0]["text"] for piece in pieces))


def n_processing(port: int) -> int:
    """Returns how many requests a server is answering."""
    connection = HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("GET", "/metrics", headers={"Host": "localhost"})
    text = connection.getresponse().read().decode()
    connection.close()
    found = re.search(r"^edgedec:requests_processing (\S+)", text, re.MULTILINE)
    assert found is not None
    return int(float(found[1]))


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
        found = re.search(r":(\d+)\s*$", line)
        assert found is not None, line
        yield process, int(found[1])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT_S)


@contextmanager
def balancing(name: str, ports: list[int]) -> Iterator[int]:
    """Runs the balancer over servers at ``ports``; yields its own port."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        text = (HERE / CONFIGS[name]).read_text()
        for known, own in zip(("8080", "8081", "8082"), (port, *ports), strict=True):
            text = text.replace(f"127.0.0.1:{known}", f"127.0.0.1:{own}")
        config = Path(folder, CONFIGS[name])
        config.write_text(text)
        own = ["-p", folder, "-g", f"daemon off; pid {folder}/pid;", "-c"]
        flags = {"haproxy": ["-db", "-f"], "nginx": own}[name]
        command = [name, *flags, str(config)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: ask(port, prompt_of(0)).text is not None)
            yield port
        finally:
            process.terminate()
            process.wait(WAIT_S)


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
