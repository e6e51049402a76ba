"""Whether a loaded model answers while another one loads, and how long streams are silent.

    python tools/serving/loading.py smollm2.edgedec qwen.edgedec --rounds 5

It asks the first model again and again for one token, alone and while the second is loading, and
prints the medians and the ratio of the times until that token. Meanwhile streams of both models are
open; it prints the longest time that one of them had no byte.
"""

from __future__ import annotations

import argparse
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median

from any_request import WAIT_S, ask, serving

N_ALONE = 12
"""Requests that are timed before each load."""

LONG = "Tell me everything that you know about the sea. " * 100


def chat(model: str, text: str, n_tokens: int) -> bytes:
    """Returns a request for a stream, as it is sent."""
    messages = [{"role": "user", "content": text}]
    body = {"model": model, "messages": messages, "max_tokens": n_tokens, "stream": True}
    data = json.dumps({**body, "min_tokens": n_tokens, "seed": 1}).encode()
    head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def arrivals(port: int, request: bytes) -> Iterator[tuple[float, bytes]]:
    """Yields the time of the request, and then of each arrival with all bytes until then."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(request)
        received = b""
        yield time.perf_counter(), received
        while part := connection.recv(1 << 16):
            received += part
            yield time.perf_counter(), received


def first_token_s(port: int, number: int) -> float:
    """Returns how long the first model took to its first token."""
    began_s = 0.0
    for at_s, received in arrivals(port, chat("m", f"Number {number}: hello!", 1)):
        began_s = began_s or at_s
        if b'"finish_reason":"length"' in received:
            return at_s - began_s
    raise RuntimeError(f"no answer: {received!r}")


def longest_silence_s(port: int, request: bytes) -> float:
    """Returns the longest time between two arrivals of a stream."""
    times = [at_s for at_s, _ in arrivals(port, request)]
    return max(b - a for a, b in pairwise(times))


def load(port: int, other: str) -> None:
    """Loads the second model, and unloads it again."""
    for keep_alive in (60, 0):
        ask(port, "/api/generate", {"model": other, "keep_alive": keep_alive})


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("loaded", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    alone, beside, n = list[float](), list[float](), 0
    with serving(options.loaded, f"other={options.other}") as port, ThreadPoolExecutor() as pool:
        for number in range(4):  # warm
            first_token_s(port, number)
        for _ in range(options.rounds):
            for _ in range(N_ALONE):
                n += 1
                alone.append(first_token_s(port, n))
            loading = pool.submit(load, port, "other")
            while not loading.done():
                n += 1
                beside.append(first_token_s(port, n))
        ratio = median(beside) / median(alone)
        print(f"first token alone: {1000 * median(alone):.1f} ms (median of {len(alone)})")
        print(f"while another loads: {1000 * median(beside):.1f} ms ({len(beside)}), x {ratio:.2f}")
        streams = [chat("other", LONG, 16), chat("m", "Hi", 200), chat("other", "Hi", 16)] * 4
        silences = pool.map(lambda request: longest_silence_s(port, request), streams)
        print(f"longest silence of {len(streams)} streams at once: {max(silences):.1f} s")


if __name__ == "__main__":
    main()
