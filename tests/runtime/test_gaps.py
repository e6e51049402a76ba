"""What holds up texts that are being written: no long copy is made between two of their passes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.session_memory import SessionMemory
from edgedec.runtime.sequences.state import SessionState

VOCAB, N_LONG, MAX_ROWS = 300, 200, 32


def test_texts_that_come_and_go_are_copied_a_few_rows_at_a_time(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(context=8000, memory=SessionMemory(10**7))
    rng = np.random.default_rng(2)
    prompts = [rng.integers(3, VOCAB, N_LONG).tolist() for _ in range(6)]
    short = GenerationConfig(max_new_tokens=3, method="plain", ignore_eos=True)
    alone = make_engine()
    expected = [alone.generate(prompt, short).token_ids for prompt in prompts]
    copied: list[int] = []
    snapshot = TokenSequence.snapshot

    def counting(self: TokenSequence, n_tokens: int | None = None, start: int = 0) -> SessionState:
        found = snapshot(self, n_tokens, start)
        copied.append(len(found.tokens) - start)
        return found

    is_over = threading.Event()
    writing = engine.stream([5, 6, 7], max_new_tokens=7000, method="plain", ignore_eos=True)

    def take(piece: object) -> None:
        if is_over.is_set():
            writing.stop()

    writer = threading.Thread(target=lambda: writing.write(take))
    monkeypatch.setattr(TokenSequence, "snapshot", counting)
    writer.start()
    found = [engine.generate(prompt, short).token_ids for prompt in prompts]
    is_alone = writing.is_finished
    is_over.set()
    writer.join()
    assert not is_alone
    assert found == expected
    assert sum(copied) > 2 * N_LONG  # texts were remembered
    assert max(copied) <= MAX_ROWS
