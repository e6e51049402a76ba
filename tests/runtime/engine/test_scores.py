"""How likely a text is, against the logits of its tokens one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgedec import load
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.sequences.token_tree import TokenTree


@pytest.mark.parity
def test_scores_are_those_of_the_logits(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        ids = engine.encode("The quick brown fox jumps over the lazy dog. " * 5)
        engine.generate(ids[:20])  # what it left in the KV cache does not matter
        found = engine.score(ids, 3)
        assert [one.token for one in found] == ids[1:]
        with engine.borrowed(()) as sequence:
            sequence.truncate(0)
            for i, one in enumerate(found):
                row = sequence.forward(TokenTree.chain([ids[i]]), [0]).logits[0].astype(np.float64)
                sequence.commit([0])
                exact = row - np.log(np.sum(np.exp(row - row.max()))) - row.max()
                # The sum over the vocabulary is rounded to float32, 2e-6 where it is below 32.
                assert one.logprob == pytest.approx(exact[ids[i + 1]], abs=4e-6)
                assert [token for token, _ in one.top] == list(np.argsort(-exact)[:3])
        assert engine.score(ids[:1]) == []


def test_what_cannot_be_scored(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        assert engine.score("The quick brown fox", is_over=lambda: True) == []
        with pytest.raises(ConfigError, match="n_top is 21"):
            engine.score("a b", 21)
        with pytest.raises(SessionError, match="at least one"):
            engine.score([])
        with pytest.raises(SessionError, match="expected 0 to"):
            engine.score([1, -1])
