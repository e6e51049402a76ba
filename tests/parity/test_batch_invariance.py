"""SmolLM2, bit for bit: rows alone or together, one thread or two, whatever the instruction set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from edgedec import EngineOptions, load
from edgedec.kernels import cpu
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

from ..isas import ISAS, isa_params

pytestmark = pytest.mark.slow

PREFIX = [504, 3575, 282, 4649, 314, 260, 2240, 1902, 28, 284]
TOKENS = [281, 253, 3365, 690, 260, 1357, 42, 30, 198, 504, 7042, 314, 1096, 253, 2066, 30]

Logits = npt.NDArray[np.float32]


def pass_logits(session: TokenSequence, tokens: list[int]) -> Logits:
    """Returns the logits of one pass over ``tokens`` after the prefix."""
    session.truncate(len(PREFIX))
    return session.forward(TokenTree.chain(tokens), range(len(tokens))).logits.copy()


def one_by_one(session: TokenSequence) -> Logits:
    """Returns the logits of every token, each in a pass of its own."""
    session.truncate(0)
    rows = []
    for token in PREFIX + TOKENS:
        rows.append(session.forward(TokenTree.chain([token]), [0]).logits[0].copy())
        session.commit([0])
    return np.stack(rows[len(PREFIX) :])


def same_bits(a: Logits, b: Logits) -> bool:
    return np.array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture(scope="module")
def expected(smollm2_bundle: Path) -> Logits:
    with load(smollm2_bundle, EngineOptions(threads=1)) as engine:
        return one_by_one(engine.new_sequence())


@pytest.mark.parity
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_do_not_depend_on_their_company(
    smollm2_bundle: Path, expected: Logits, threads: int
) -> None:
    with load(smollm2_bundle, EngineOptions(threads=threads)) as engine:
        session = engine.new_sequence()
        assert same_bits(one_by_one(session), expected)
        for m in range(1, len(TOKENS) + 1):
            assert same_bits(pass_logits(session, TOKENS[:m]), expected[:m]), m


@pytest.mark.parity
def test_prefill_equals_decoding(smollm2_bundle: Path, expected: Logits) -> None:
    with load(smollm2_bundle, EngineOptions(threads=2)) as engine:
        session = engine.new_sequence()
        tokens = PREFIX + TOKENS
        logits = session.forward(TokenTree.chain(tokens), range(len(tokens))).logits
        assert same_bits(logits[len(PREFIX) :], expected)


@pytest.mark.parity
def test_a_branch_equals_its_chain(smollm2_bundle: Path, expected: Logits) -> None:
    with load(smollm2_bundle, EngineOptions(threads=2)) as engine:
        session = engine.new_sequence()
        session.forward(TokenTree.chain(PREFIX), [])
        session.commit(range(len(PREFIX)))
        tree = TokenTree((TOKENS[0], 99, TOKENS[1], 77, TOKENS[2]), (-1, -1, 0, 1, 2))
        logits = session.forward(tree, [0, 2, 4]).logits
        assert same_bits(logits, expected[:3])
        session.commit([0, 2, 4])
        after = session.forward(TokenTree.chain(TOKENS[3:5]), [0, 1]).logits
        assert same_bits(after, expected[3:5])


@pytest.mark.parity
@pytest.mark.parametrize("isa", isa_params(ISAS))
def test_every_instruction_set_computes_the_same(
    smollm2_bundle: Path, expected: Logits, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGEDEC_ISA", isa)
    with load(smollm2_bundle, EngineOptions(threads=2)) as engine:
        assert cpu.active_isa() == isa
        session = engine.new_sequence()
        tokens = PREFIX + TOKENS
        logits = session.forward(TokenTree.chain(tokens), range(len(tokens))).logits
        assert same_bits(logits[len(PREFIX) :], expected)
