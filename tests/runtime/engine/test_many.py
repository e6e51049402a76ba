"""Several requests at once: each text is what it is alone."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgedec import EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.models.errors import SessionError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.many import in_order
from edgedec.runtime.engine.stream import Stream

PROMPTS = [
    "The quick brown fox", "lines and spaces", "jumps over the lazy dog", "a", "text text text",
    "user and assistant", "Repeat: red, green, red, green, red,", "def add(a, b):", "One, two,",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("method", ["plain", "auto"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_every_text_is_its_text_alone(
    small_bundle: Path, method: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingConfig(temperature=temperature)
    config = GenerationConfig(max_new_tokens=20, method=method, sampling=sampling, seed=3)
    with load(small_bundle, EngineOptions(threads=2)) as engine:
        alone = [engine.generate(prompt, config).token_ids for prompt in PROMPTS]
        compute, n_shared = engine.model.compute, list[int]()

        def counting(passes: Any) -> Any:
            n_shared.append(len(passes))
            return compute(passes)

        monkeypatch.setattr(engine.model, "compute", counting)
        done: list[int] = []
        many = engine.generate_many(PROMPTS, config, lambda place, result: done.append(place))
        assert [result.token_ids for result in many] == alone
        assert sorted(done) == list(range(len(PROMPTS)))
        assert max(n_shared) > 1


def test_prompts_that_begin_alike_follow_each_other(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    opened: list[list[int]] = []
    open_stream = engine.streams.open

    def note(ids: list[int], *args: Any, **kwargs: Any) -> Stream:
        opened.append(ids)
        return open_stream(ids, *args, **kwargs)

    monkeypatch.setattr(engine.streams, "open", note)
    prompts = ["The fox", "One, two", "The dog", "One, six", "The cat"]
    config = GenerationConfig(max_new_tokens=2)
    many = engine.generate_many(prompts, config)
    assert len(opened) == len(prompts)
    assert opened == sorted(opened)
    assert [one.text for one in many] == [engine.generate(text, config).text for text in prompts]


def test_a_bad_prompt_stops_all(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()
    with pytest.raises(SessionError, match="empty"):
        engine.generate_many(["The quick", ""], GenerationConfig(max_new_tokens=4))
    assert engine.generate_many([], GenerationConfig(max_new_tokens=4)) == []


def test_a_failing_callback_ends_all(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    def fail(place: int, result: object) -> None:
        raise ValueError(f"no {place}")

    with pytest.raises(ValueError, match="no "):
        engine.generate_many(PROMPTS, GenerationConfig(max_new_tokens=200), fail)
    engine.close()  # nothing is busy


def test_endless_prompts_are_written_in_order_and_not_far_ahead(
    make_engine: Callable[..., Engine],
) -> None:
    engine, config = make_engine(), GenerationConfig(max_new_tokens=5, method="plain")
    expected = [engine.generate(prompt, config).token_ids for prompt in PROMPTS]
    n_opened = itertools.count()

    def openers() -> Iterator[Callable[[], Stream]]:
        for prompt in itertools.cycle(PROMPTS):
            next(n_opened)
            yield partial(engine.stream, prompt, config)

    results = in_order(openers(), 3)
    found = [next(results).token_ids for _ in range(2 * len(PROMPTS))]
    assert found == 2 * expected
    results.close()
    assert next(n_opened) == 2 * len(PROMPTS) + 2 * 3 - 1
    engine.close()  # nothing is busy


def test_all_texts_end_where_they_are(make_engine: Callable[..., Engine]) -> None:
    engine, config = make_engine(), GenerationConfig(max_new_tokens=400, ignore_eos=True)
    openers = [partial(engine.stream, prompt, config) for prompt in PROMPTS]
    found = list(in_order(openers, 3, lambda: True))
    assert {result.finish_reason for result in found} == {"cancelled"}


def test_a_program_that_awaits(make_engine: Callable[..., Engine]) -> None:
    engine, config = make_engine(), GenerationConfig(max_new_tokens=12)
    expected = [engine.generate(prompt, config).text for prompt in PROMPTS[:3]]

    async def text(prompt: str) -> str:
        return "".join([piece async for piece in engine.astream(prompt, config)])

    async def all_texts() -> list[str]:
        return await asyncio.gather(*(text(prompt) for prompt in PROMPTS[:3]))

    assert asyncio.run(all_texts()) == expected


def test_who_stops_awaiting_ends_the_stream(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine()

    async def first() -> str:
        pieces = engine.astream(PROMPTS[0], GenerationConfig(max_new_tokens=200))
        async for piece in pieces:
            await pieces.aclose()  # type: ignore[attr-defined]
            return piece
        return ""

    assert asyncio.run(first())
    engine.close()
