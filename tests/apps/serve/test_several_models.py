"""Several models in a server: which of them are in memory."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.serve.offers import find_offers
from edgedec.apps.serve.shelf import Shelf
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.opening.load import load

pytestmark = pytest.mark.e2e


def loaded(server: Any) -> list[str]:
    return [model["name"] for model in server.ask("GET", "/api/ps")[1]["models"]]


def answer(server: Any, model: str) -> str:
    body = {"model": model, "prompt": "One, two,", "max_tokens": 4, "temperature": 0}
    status, found = server.ask("POST", "/v1/completions", body)
    assert status == 200, found
    return str(found["choices"][0]["text"])


@pytest.fixture
def two(smollm2_bundle: Path) -> list[str]:
    """One model by two names: for the server two models."""
    return [f"{name}={smollm2_bundle}" for name in ("first", "second")]


def test_the_model_used_longest_ago_makes_room(make_server: Any, two: list[str]) -> None:
    n_bytes = find_offers(two)[0].n_bytes
    server = make_server(two, memory_bytes=2 * n_bytes - 1)
    text = answer(server, "first")
    assert loaded(server) == ["first"]
    assert answer(server, "second") == text
    assert loaded(server) == ["second"]
    assert answer(server, "first") == text
    assert loaded(server) == ["first"]


def test_models_that_fit_together_stay(make_server: Any, two: list[str]) -> None:
    server = make_server(two, memory_bytes=2 * find_offers(two)[0].n_bytes)
    assert answer(server, "first") == answer(server, "second")
    assert loaded(server) == ["first", "second"]


def test_a_model_in_use_is_waited_for(make_server: Any, two: list[str], until: Any) -> None:
    server = make_server(two, memory_bytes=find_offers(two)[0].n_bytes)
    with server.connect() as connection:
        data = b'{"model": "first", "prompt": "One,", "n_predict": 8000, "ignore_eos": true}'
        head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
        connection.sendall(head % len(data) + data)
        until(lambda: loaded(server) == ["first"])
        with server.connect() as waiting:
            data = b'{"model": "second", "prompt": "One,", "n_predict": 4}'
            waiting.sendall(head % len(data) + data)
            until(lambda: server.service.n_running == 2)
            assert loaded(server) == ["first"]
            connection.close()  # the first model's answer ends, and it makes room
            assert b" 200 " in waiting.recv(65536)
    assert loaded(server) == ["second"]


def test_a_model_that_never_fits_is_refused(make_server: Any, two: list[str]) -> None:
    server = make_server(two, memory_bytes=find_offers(two)[0].n_bytes - 1)
    body = {"model": "first", "prompt": "One,", "max_tokens": 4}
    status, found = server.ask("POST", "/v1/completions", body)
    assert (status, found["error"]["type"]) == (503, "unavailable_error")
    assert "--memory allows" in found["error"]["message"]


def test_a_model_is_kept_whose_client_left_while_it_was_loaded(two: list[str]) -> None:
    is_loading, may_load = threading.Event(), threading.Event()
    n_loads = 0

    def load_late(bundle: Path) -> Engine:
        nonlocal n_loads
        n_loads += 1
        is_loading.set()
        assert may_load.wait(60)
        return load(bundle)

    async def use(shelf: Shelf) -> None:
        async with shelf.lent(shelf.offers[0]):
            pass

    async def leave_and_return() -> None:
        shelf = Shelf(find_offers(two), load_late)
        leaving = asyncio.create_task(use(shelf))
        await asyncio.to_thread(is_loading.wait, 60)
        leaving.cancel()
        may_load.set()
        await asyncio.gather(leaving, return_exceptions=True)
        await use(shelf)
        await shelf.close()

    asyncio.run(leave_and_return())
    assert n_loads == 1
