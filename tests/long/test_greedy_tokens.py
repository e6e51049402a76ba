"""Greedy tokens of every method are plain decoding's, on a hundred prompts, whatever interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import edgedec
from edgedec import EngineOptions
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.drafting.stats import DraftCounts
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.engine.result import GenerationResult

from ..isas import isa_params
from .conftest import CONTEXT, Note
from .prompts import encoded_prompts

pytestmark = pytest.mark.long

N_TOKENS = 256
X86_ISAS = ("avx512vnni", "avxvnni", "avx2", "scalar")
Plain = Callable[[int], list[tuple[int, ...]]]


@dataclass(frozen=True)
class Case:
    """A method, and whether its engine has the draft model."""

    method: str
    has_draft: bool = False

    def __str__(self) -> str:
        return f"{self.method}{' of the pair' if self.has_draft else ''}"


CASES = [
    Case("auto"),
    Case("lookup"),
    Case("recycling"),
    Case("trigram"),
    Case("store"),
    Case("lookup+recycling+trigram+store"),
    Case("auto", has_draft=True),
    Case("draft", has_draft=True),
    Case("draft+lookup+recycling", has_draft=True),
]
FEW_CASES = [CASES[0], CASES[5], CASES[8]]


@contextmanager
def opened(bundle: Path, case: Case, threads: int, store: Path) -> Iterator[Engine]:
    needs_store = "store" in case.method
    options = EngineOptions(
        threads=threads,
        context=CONTEXT,
        draft=case.has_draft,
        prefix_cache_mb=0,
        store=store if needs_store else None,
    )
    with edgedec.load(bundle, options) as engine:
        yield engine


def request(method: str, n_tokens: int = N_TOKENS) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=n_tokens, ignore_eos=True, method=method)


@pytest.fixture(scope="module")
def prompts(smollm2_pair: Path) -> list[list[int]]:
    with edgedec.load(smollm2_pair, EngineOptions(draft=False)) as engine:
        return encoded_prompts(engine)


@pytest.fixture(scope="module")
def plain(smollm2_pair: Path, prompts: list[list[int]]) -> Plain:
    """Returns what plain decoding emits for every prompt with so many threads."""
    known: dict[int, list[tuple[int, ...]]] = {}

    def texts(threads: int) -> list[tuple[int, ...]]:
        if threads not in known:
            options = EngineOptions(threads=threads, context=CONTEXT, draft=False)
            with edgedec.load(smollm2_pair, options) as engine:
                known[threads] = [engine.generate(p, request("plain")).token_ids for p in prompts]
        return known[threads]

    return texts


def summed(results: Sequence[GenerationResult], expected: Sequence[tuple[int, ...]]) -> str:
    """Returns the figures of outputs; asserts that they are ``expected`` and were drafted."""
    different = [
        (
            i,
            next(
                k for k, pair in enumerate(zip(r.token_ids, e, strict=False)) if pair[0] != pair[1]
            ),
        )
        for i, (r, e) in enumerate(zip(results, expected, strict=True))
        if r.token_ids != e
    ]
    assert different == []  # (prompt, first other token)
    assert all(result.lossless and not result.stats.failed_drafters for result in results)
    drafted = DraftCounts.total(result.stats.total_drafted for result in results)
    n_passes = sum(result.stats.n_passes for result in results)
    n_tokens = sum(result.n_new_tokens for result in results)
    assert drafted.n_accepted > 0
    assert n_passes < n_tokens - len(results)
    return (
        f"{len(results)} prompts, {n_tokens} tokens equal plain's; {drafted.n_accepted} of "
        f"{drafted.n_evaluated} drafted tokens accepted, {n_passes} passes"
    )


def test_plain_tokens_do_not_depend_on_threads(plain: Plain, note: Note) -> None:
    one, two = plain(1), plain(2)
    assert one == two
    assert {len(tokens) for tokens in one} == {N_TOKENS}
    assert len({tokens[:32] for tokens in one}) > 90
    note(f"{len(one)} prompts, {sum(map(len, one))} tokens equal with 1 and 2 threads")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_tokens_equal_plain(
    smollm2_pair: Path,
    prompts: list[list[int]],
    plain: Plain,
    case: Case,
    threads: int,
    store: Path,
    note: Note,
) -> None:
    with opened(smollm2_pair, case, threads, store) as engine:
        results = [engine.generate(ids, request(case.method)) for ids in prompts]
    note(summed(results, plain(threads)))


@pytest.mark.parametrize("isa", isa_params(X86_ISAS))
@pytest.mark.parametrize("case", FEW_CASES, ids=str)
def test_tokens_equal_plain_on_every_isa(
    smollm2_pair: Path,
    prompts: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    isa: str,
    threads: int,
    store: Path,
    note: Note,
) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", isa)
    n_prompts, n_tokens = (3, 24) if isa == "scalar" else (10, 64)
    few = prompts[:: len(prompts) // n_prompts][:n_prompts]
    with opened(smollm2_pair, case, threads, store) as engine:
        expected = [engine.generate(ids, request("plain", n_tokens)).token_ids for ids in few]
        results = [engine.generate(ids, request(case.method, n_tokens)) for ids in few]
    note(summed(results, expected))


@pytest.mark.parametrize("case", FEW_CASES, ids=str)
def test_stopped_dropped_and_resumed(
    smollm2_pair: Path,
    prompts: list[list[int]],
    plain: Plain,
    case: Case,
    threads: int,
    store: Path,
    note: Note,
) -> None:
    """A text stopped again and again, with dropped turns between, goes on where it was."""
    n_stops = 0
    with opened(smollm2_pair, case, threads, store) as engine:
        for i, (ids, truth) in enumerate(zip(prompts[::5], plain(threads)[::5], strict=True)):
            text: list[int] = []
            while len(text) < N_TOKENS:
                n_pieces = 1 + (7 * n_stops + i) % 45
                drop(engine, [*ids, *text[: n_pieces % 5]], case.method, n_pieces % 7)
                result = part(engine, [*ids, *text], case.method, N_TOKENS - len(text), n_pieces)
                text += result.token_ids
                assert text == list(truth[: len(text)])
                with engine.borrowed([*ids, *text]) as sequence:
                    held = list(sequence.tokens)
                    assert len(held) >= len(ids)
                    assert held == [*ids, *text][: len(held)]
                n_stops += 1
    note(f"{len(prompts[::5])} prompts, {n_stops} parts, tokens equal plain's")


def part(
    engine: Engine, ids: Sequence[int], method: str, n_tokens: int, n_pieces: int
) -> GenerationResult:
    """Returns an output stopped after ``n_pieces`` pieces of text."""
    stream = engine.stream(list(ids), request(method, n_tokens))
    for _, _ in zip(range(n_pieces), stream, strict=False):
        pass
    stream.stop()
    return stream.result


def drop(engine: Engine, ids: Sequence[int], method: str, n_pieces: int) -> None:
    """Begins another turn and cancels it after ``n_pieces`` pieces of text."""
    stream = engine.stream(list(ids), request(method))
    for _, _ in zip(range(n_pieces), stream, strict=False):
        pass
    stream.cancel()


@pytest.mark.pair
@pytest.mark.parametrize("method", ["auto", "draft", "draft+lookup+recycling"])
def test_tokens_equal_plain_with_qwen(
    qwen_pair: Path, method: str, threads: int, store: Path, note: Note
) -> None:
    case = Case(method, has_draft=True)
    with opened(qwen_pair, case, threads, store) as engine:
        few = encoded_prompts(engine)[::5]
        expected = [engine.generate(ids, request("plain", 64)).token_ids for ids in few]
        results = [engine.generate(ids, request(method, 64)) for ids in few]
    note(summed(results, expected))
