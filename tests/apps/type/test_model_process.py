"""The model's process, spoken to as `edgedec type` does, with a real worker and a real model."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("dbus_fast", reason="needs the extra type")

from edgedec.apps.type.model_process import ModelProcess
from edgedec.apps.type.program import typing_settings
from edgedec.apps.type.settings import TypeSettings
from edgedec.apps.typing.typing_memory import TypingMemory

DEADLINE_S = 60


async def converse(bundle: Path) -> tuple[list[tuple[str, bool]], list[str], list[str]]:
    """Returns what the worker offers for a text, which other texts, and what it remarks."""
    offers: list[tuple[str, bool]] = []
    others: list[str] = []
    remarks: list[str] = []
    is_done, is_answered = asyncio.Event(), asyncio.Event()

    def take_offer(text: str, is_complete: bool) -> None:
        offers.append((text, is_complete))
        if is_complete:
            is_done.set()

    def take_others(texts: Sequence[str]) -> None:
        others.extend(texts)
        is_answered.set()

    memory = asdict(TypingMemory())
    source = {"bundle": str(bundle), "threads": 1, "context": None, "memory": memory}
    typing = typing_settings(TypeSettings(min_probability=0.0))
    model = ModelProcess(source, typing, take_offer, take_others, remarks.append)
    running = asyncio.create_task(model.run())
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not model.is_serving:
                await asyncio.sleep(0.02)
            model.update("It is", "")  # never asked for: a key follows at once
            model.update("The capital of France is", "")
            await is_done.wait()
            model.alternatives()
            await is_answered.wait()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    return offers, others, remarks


@pytest.mark.e2e
def test_the_worker_offers_and_has_other_continuations(smollm2_bundle: Path) -> None:
    offers, others, remarks = asyncio.run(converse(smollm2_bundle))
    assert "Paris" in offers[-1][0]
    assert others
    assert remarks == [f"suggestions come from {smollm2_bundle}"]  # and it did not end


class Asking(ModelProcess):
    """Notes what its worker would be asked."""

    def __init__(self) -> None:
        super().__init__({}, {}, lambda *_: None, lambda *_: None, lambda *_: None)
        self._number = 1
        self.asked: list[str] = []

    def _ask(self, what: str, **arguments: object) -> None:
        document = arguments.get("document")
        self.asked.append(str(document["text"]) if isinstance(document, dict) else what)


def test_keys_that_follow_at_once_are_asked_about_together() -> None:
    async def ask() -> list[str]:
        model = Asking()
        model.update("a", "")
        model.pause()
        model.update("a", "")
        model.update("ab", "")
        model.alternatives()
        model.update("abc", "")
        while "abc" not in model.asked:
            await asyncio.sleep(0.001)
        return model.asked

    assert asyncio.run(ask()) == ["pause", "ab", "alternatives", "abc"]
