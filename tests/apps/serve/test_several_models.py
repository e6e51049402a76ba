"""Several models in a server: which of them are in memory."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.serve.model_registry import ModelRegistry
from edgedec.apps.serve.offers import find_offers
from edgedec.models.errors import ConfigError
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


def test_a_loaded_model_answers_while_another_loads(make_server: Any, two: list[str]) -> None:
    is_loading, may_load = threading.Event(), threading.Event()

    def load_one_late(bundle: Path) -> Engine:
        if server.service.registry.loaded:
            is_loading.set()
            assert may_load.wait(60)
        return load(bundle)

    server = make_server(two, load=load_one_late)
    text = answer(server, "first")
    with ThreadPoolExecutor() as pool:
        late = pool.submit(answer, server, "second")
        try:
            assert is_loading.wait(60)
            assert answer(server, "first") == text
            assert loaded(server) == ["first"]
        finally:
            may_load.set()
        assert late.result(60) == text


def test_two_models_load_side_by_side(two: list[str]) -> None:
    both = threading.Barrier(2)

    def load_together(bundle: Path) -> Engine:
        both.wait(60)
        return load(bundle)

    async def use_both() -> None:
        registry = ModelRegistry(find_offers(two), load_together)
        await asyncio.gather(*(_use(registry, offer.name) for offer in registry.offers))
        await registry.close()

    asyncio.run(use_both())


def test_a_waiting_model_gets_its_turn_before_later_requests(two: list[str]) -> None:
    order: list[str] = []

    async def use(registry: ModelRegistry, name: str, title: str) -> None:
        await _use(registry, name)
        order.append(title)

    async def compete() -> None:
        registry = ModelRegistry(find_offers(two), load, memory_bytes=find_offers(two)[0].n_bytes)
        first, _ = registry.offers
        async with registry.lent(first):
            tasks = [asyncio.create_task(use(registry, "second", "waiting"))]
            await asyncio.sleep(0)  # the model waits for room now
            await asyncio.sleep(0)
            tasks.append(asyncio.create_task(use(registry, "first", "later")))
            await asyncio.sleep(0)
            assert not order
        await asyncio.gather(*tasks)
        assert registry.loaded == [first]
        await registry.close()

    asyncio.run(compete())
    assert order == ["waiting", "later"]


def test_nobody_makes_room_for_a_client_that_left(two: list[str]) -> None:
    n_loads = 0

    def count(bundle: Path) -> Engine:
        nonlocal n_loads
        n_loads += 1
        return load(bundle)

    async def leave() -> None:
        registry = ModelRegistry(find_offers(two), count, memory_bytes=find_offers(two)[0].n_bytes)
        first, _ = registry.offers
        async with registry.lent(first):
            leaving = asyncio.create_task(_use(registry, "second"))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            await _use(registry, "first")
        assert registry.loaded == [first]
        await registry.close()

    asyncio.run(leave())
    assert n_loads == 1


def test_many_clients_of_models_that_share_memory_all_get_answers(
    two: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    n_bytes = find_offers(two)[0].n_bytes
    most = 0
    open_engines: set[Engine] = set()

    def load_and_count(bundle: Path) -> Engine:
        nonlocal most
        engine = load(bundle)
        close = engine.close

        def count_close() -> None:
            close()
            open_engines.discard(engine)

        monkeypatch.setattr(engine, "close", count_close)
        open_engines.add(engine)
        most = max(most, len(open_engines))
        return engine

    async def use_all() -> None:
        registry = ModelRegistry(
            find_offers(two), load_and_count, memory_bytes=n_bytes, keep_alive_s=0
        )
        names = ["first", "second"] * 6
        await asyncio.gather(*(_use(registry, name) for name in names))
        await registry.close()

    asyncio.run(use_all())
    assert most == 1


def test_all_who_wait_for_a_model_that_cannot_be_loaded_hear_of_it(two: list[str]) -> None:
    def fail(bundle: Path) -> Engine:
        raise ConfigError("the disk is gone")

    async def ask() -> list[Any]:
        registry = ModelRegistry(find_offers(two), fail)
        found = await asyncio.gather(
            *(_use(registry, "first") for _ in range(2)), return_exceptions=True
        )
        await registry.close()
        return found

    found = asyncio.run(ask())
    assert [str(error) for error in found] == ["first cannot be loaded: the disk is gone"] * 2


async def _use(registry: ModelRegistry, name: str) -> None:
    async with registry.lent(registry.find(name)) as engine:
        await asyncio.to_thread(engine.encode, "One")


def test_a_model_is_kept_whose_client_left_while_it_was_loaded(two: list[str]) -> None:
    is_loading, may_load = threading.Event(), threading.Event()
    n_loads = 0

    def load_late(bundle: Path) -> Engine:
        nonlocal n_loads
        n_loads += 1
        is_loading.set()
        assert may_load.wait(60)
        return load(bundle)

    async def use(registry: ModelRegistry) -> None:
        async with registry.lent(registry.offers[0]):
            pass

    async def leave_and_return() -> None:
        registry = ModelRegistry(find_offers(two), load_late)
        leaving = asyncio.create_task(use(registry))
        await asyncio.to_thread(is_loading.wait, 60)
        leaving.cancel()
        may_load.set()
        await asyncio.gather(leaving, return_exceptions=True)
        await use(registry)
        await registry.close()

    asyncio.run(leave_and_return())
    assert n_loads == 1
