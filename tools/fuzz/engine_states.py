"""Random sequences of what an engine can be asked for, with faults in between.

    python tools/fuzz/engine_states.py --tries 10000 --seconds 500

Whatever happened before: a text is that of an engine that was asked for nothing else, one that was
cut short is its beginning, and files are whole. The engine is a real one over a tiny bundle.
"""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    rule,
    run_state_machine_as_test,
)
from pieces import run_tries
from tiny import make_bundle

import edgedec
from edgedec.models.errors import EdgedecError
from edgedec.runtime.backends.kv_cache import PanelKVCache
from edgedec.runtime.backends.ort import PassRunner
from edgedec.runtime.sequences import session_file as session_file

N_STEPS = 20
N_OF_A_PIECE = 100
SAMPLED = edgedec.SamplingConfig(temperature=0.8, top_p=0.9)
REQUESTS = [
    edgedec.GenerationConfig(max_new_tokens=9, ignore_eos=True),
    edgedec.GenerationConfig(max_new_tokens=14, ignore_eos=True, method="lookup"),
    edgedec.GenerationConfig(max_new_tokens=12, method="lookup+recycling+store"),
    edgedec.GenerationConfig(max_new_tokens=11, method="auto", sampling=SAMPLED, seed=3),
    edgedec.GenerationConfig(max_new_tokens=40, sampling=SAMPLED, seed=8),
]
PROMPTS = ["abab", "a", "the same beginning, then one", "the same beginning, then two", "ab" * 30]
_ENDINGS = (EdgedecError, MemoryError, KeyboardInterrupt)

_folder = tempfile.TemporaryDirectory()
_results: dict[tuple[tuple[int, ...], int], edgedec.GenerationResult] = {}


def bundle() -> Path:
    """Returns the tiny bundle, made at the first call."""
    path = Path(_folder.name, "tiny.edgedec")
    return path if path.exists() else make_bundle(Path(_folder.name))


def expected(ids: tuple[int, ...], number: int) -> edgedec.GenerationResult:
    """Returns what an engine makes of ``ids`` that was asked for nothing before."""
    if (ids, number) not in _results:
        plain = edgedec.EngineOptions(threads=1, prefix_cache_mb=0)
        with edgedec.load(bundle(), plain) as engine:
            request = {**vars(REQUESTS[number]), "method": "plain"}
            result = engine.generate(ids, edgedec.GenerationConfig(**request))
            _results[ids, number] = result
    return _results[ids, number]


def check(result: edgedec.GenerationResult, whole: edgedec.GenerationResult) -> None:
    """Raises unless ``result`` is ``whole``, or, where it was cut short, its beginning."""
    n_tokens = len(result.token_ids)
    assert result.token_ids == whole.token_ids[:n_tokens]
    if result.finish_reason != "cancelled":
        assert (n_tokens, result.text) == (len(whole.token_ids), whole.text)


class EngineStates(RuleBasedStateMachine):
    """One engine, its streams and its conversations."""

    streams = Bundle("streams")
    talks = Bundle("talks")
    prompts = st.sampled_from(PROMPTS)
    requests = st.integers(0, len(REQUESTS) - 1)

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(dir=_folder.name)
        self.file = Path(self.folder.name, "s.session")
        self.texts: dict[int, tuple[tuple[int, ...], int]] = {}
        self.fault: Any = None
        bundle()
        self.open()

    def open(self) -> None:
        """Opens the engine; its conversations tell what they ask it for."""
        options = edgedec.EngineOptions(
            threads=1, prefix_cache_mb=1, store=Path(self.folder.name, "texts.ngrams")
        )
        self.engine = edgedec.load(bundle(), options)
        self.prompt_tokens: tuple[int, ...] = ()
        streams = self.engine.streams
        open_stream = streams.open

        def noting(prompt: Any, *others: Any) -> Any:
            self.prompt_tokens = tuple(self.engine.encode(prompt))
            return open_stream(prompt, *others)

        streams.open = noting  # type: ignore[method-assign]

    def allowed(self, act: Callable[[], Any]) -> Any:
        """Returns what ``act`` returns; with a fault ahead it may end in an error, and None."""
        if self.fault is None:
            return act()
        kind, after = self.fault
        self.fault = None
        try:
            with fault(kind, after):
                return act()
        except _ENDINGS:
            return None

    @rule(kind=st.sampled_from(["pass", "memory", "interrupt", "rows", "load", "disk", "read"]),
          after=st.integers(0, 6))  # fmt: skip
    def meet_a_fault(self, kind: str, after: int) -> None:
        """The next action meets a fault, if it comes that far."""
        self.fault = kind, after

    @rule(prompt=prompts, number=requests)
    def generate(self, prompt: str, number: int) -> None:
        """A whole text."""
        result = self.allowed(lambda: self.engine.generate(prompt, REQUESTS[number]))
        if result is not None:
            check(result, expected(self.prompt_tokens, number))

    @rule(target=streams, prompt=prompts, number=requests)
    def stream(self, prompt: str, number: int) -> Any:
        """A text that others interrupt."""
        stream = self.engine.stream(prompt, REQUESTS[number])
        self.texts[id(stream)] = self.prompt_tokens, number
        return stream

    @rule(stream=streams, n=st.integers(1, 6))
    def advance(self, stream: Any, n: int) -> None:
        """Some pieces of a text."""
        self.allowed(lambda: [next(stream, None) for _ in range(n)])
        self.check(stream)

    @rule(stream=streams, is_dropped=st.booleans())
    def stop(self, stream: Any, is_dropped: bool) -> None:
        """A text ends here, or never was."""
        self.allowed(stream.cancel if is_dropped else stream.stop)
        self.check(stream)

    @rule(stream=consumes(streams))
    def let_go(self, stream: Any) -> None:
        """Nobody cares for a text any more."""
        self.check(stream)
        del self.texts[id(stream)]

    def check(self, stream: Any) -> None:
        """A text is the beginning of what it is to be, or all of it."""
        whole = expected(*self.texts[id(stream)])
        if stream.is_finished:
            check(stream.result, whole)
        else:
            assert whole.text.startswith(stream.text)

    @rule(target=talks, number=requests)
    def talk(self, number: int) -> Any:
        """A conversation begins."""
        return self.engine.conversation(config=REQUESTS[number]), number

    @rule(talk=talks, prompt=prompts, n=st.none() | st.integers(0, 5), is_dropped=st.booleans())
    def answer(self, talk: Any, prompt: str, n: int | None, is_dropped: bool) -> None:
        """A conversation goes on; its answer is read to its end, stopped or cancelled."""
        conversation, number = talk
        before = conversation.messages
        try:
            stream = conversation.send(prompt)
        except EdgedecError:  # it is too long, or of an engine that is closed
            return
        before = conversation.messages  # an earlier answer was stopped
        self.texts[id(stream)] = self.prompt_tokens, number
        pieces = iter(lambda: next(stream, None), None) if n is None else range(n)
        self.allowed(lambda: [p if n is None else next(stream, None) for p in pieces])
        if not stream.is_finished:
            (stream.cancel if is_dropped else stream.stop)()
        self.check(stream)
        n_turns = 0 if stream.result.finish_reason == "cancelled" and is_dropped else 2
        assert len(conversation.messages) in (len(before) + n_turns, len(before) + 2)

    @rule(prompt=prompts)
    def suggest(self, prompt: str) -> None:
        """Completions side by side leave no trace."""
        self.allowed(lambda: self.engine.suggest(prompt))

    @rule()
    def save(self) -> None:
        """The file is the new one or the old one."""
        before = self.file.read_bytes() if self.file.exists() else None
        failed = self.allowed(lambda: self.engine.save_session(self.file) or True) is None
        if failed:
            assert before == (self.file.read_bytes() if self.file.exists() else None)
        others = {path.name for path in self.file.parent.iterdir()} - {"s.session", "texts.ngrams"}
        assert not others

    @rule()
    def load(self) -> None:
        """A session of this bundle is taken."""
        if self.file.exists():
            self.allowed(lambda: self.engine.load_session(self.file))

    @rule(what=st.sampled_from(["forget_prompts", "forget_drafts"]))
    def forget(self, what: str) -> None:
        """Earlier requests are forgotten."""
        self.allowed(getattr(self.engine, what))

    @rule()
    def close(self) -> None:
        """The engine ends with all its streams, and another begins."""
        self.engine.close()
        with pytest.raises(EdgedecError, match="closed"):
            self.engine.generate("a")
        self.open()

    def teardown(self) -> None:
        """Everything ends."""
        self.engine.close()
        self.folder.cleanup()


@contextmanager
def fault(kind: str, after: int) -> Iterator[None]:
    """What fails inside the block, from the call after the first ``after`` on, once."""
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    broken = OSError(errno.EIO, os.strerror(errno.EIO))
    owner, name, error = {
        "pass": (PassRunner, "run", edgedec.SessionError("ONNX Runtime could not run the model")),
        "memory": (PassRunner, "run", MemoryError()),
        "interrupt": (PassRunner, "run", KeyboardInterrupt()),
        "rows": (PanelKVCache, "rows", MemoryError()),
        "load": (PanelKVCache, "load_rows", MemoryError()),
        "disk": (os, "fsync", full),
        "read": (session_file._Reader, "_exactly", broken),
    }[kind]
    function, n_left = getattr(owner, name), after

    def failing(*arguments: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left == -1:
            raise error
        return function(*arguments)

    setattr(owner, name, failing)
    try:
        yield
    finally:
        setattr(owner, name, function)


def run_sequences(number: int, n_sequences: int) -> None:
    """Runs random sequences, others for each ``number``; what fails is shrunk and shown."""
    chosen = settings(
        max_examples=n_sequences, stateful_step_count=N_STEPS, deadline=None, database=None,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(seed(number)(EngineStates), settings=chosen)


def piece(number: int) -> int:
    """Runs some sequences."""
    run_sequences(number, N_OF_A_PIECE)
    return N_OF_A_PIECE


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "engine_states", 10_000, piece))
