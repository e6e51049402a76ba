"""The portable backend over a graph that optimum-onnx made, against the model it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph_models import open_graph_model

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig, SpeculationConfig
from edgedec.runtime.methods.method_parts import MethodParts
from edgedec.runtime.methods.methods import Methods
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

from ..draft_toys import generate

pytestmark = [pytest.mark.parity, pytest.mark.slow]
TOKENS = [5, 90, 33, 2, 61, 7]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    """Returns the graph of a tiny random GPT-2, its config, and the logits of `TOKENS`."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("optimum.exporters.onnx")
    from edgedec.export.phases.optimum_fallback import export_with_optimum

    torch.manual_seed(1)
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config).eval()
    folder = tmp_path_factory.mktemp("gpt2")
    model.save_pretrained(folder / "model")
    (folder / "onnx").mkdir()
    written = export_with_optimum(folder / "model", "gpt2", folder / "onnx")
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS])).logits[0].numpy()
    return folder / "onnx" / "model.onnx", written.config, logits


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(6,), (1,) * 6, (4, 2)], ids=str)
def test_chain_equals_transformers(gpt2: tuple[Path, Any, Any], sizes: tuple[int, ...]) -> None:
    graph, config, expected = gpt2
    session = TokenSequence(open_graph_model(graph, config, 1), 64)
    start = 0
    for size in sizes:
        chain = TokenTree.chain(TOKENS[start : start + size])
        rows = session.forward(chain, (size - 1,))
        session.commit(range(size))
        start += size
        np.testing.assert_allclose(rows.logits[0], expected[start - 1], atol=1e-4)
    session.truncate(3)
    rows = session.forward(TokenTree.chain(TOKENS[3:]), range(3))
    np.testing.assert_allclose(rows.logits, expected[3:], atol=1e-4)


def test_tree_is_refused(gpt2: tuple[Path, Any, Any]) -> None:
    graph, config, _ = gpt2
    session = TokenSequence(open_graph_model(graph, config, 1), 64)
    with pytest.raises(SessionError, match="cannot run a tree of drafts"):
        session.forward(TokenTree((1, 2, 3), (-1, 0, 0)), (2,))


def test_restored_session_goes_on_bit_for_bit(gpt2: tuple[Path, Any, Any]) -> None:
    graph, config, _ = gpt2
    model = open_graph_model(graph, config, 1)
    computed, restored = TokenSequence(model, 64), TokenSequence(model, 64)
    computed.forward(TokenTree.chain(TOKENS), ())
    computed.commit(range(len(TOKENS)))
    restored.restore(computed.snapshot(5))
    computed.truncate(5)
    rest = TokenTree.chain([8, 9])
    expected = computed.forward(rest, (0, 1)).logits
    np.testing.assert_array_equal(restored.forward(rest, (0, 1)).logits, expected)


@pytest.mark.parametrize("method", ["auto", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_are_chains(gpt2: tuple[Path, Any, Any], method: str, temperature: float) -> None:
    """Costs are measured over chains, and a tree of drafts becomes its likeliest chain."""
    graph, config, _ = gpt2
    model = open_graph_model(graph, config, 1)
    sampling = SamplingConfig(temperature=temperature)
    is_fixed = method == "lookup"  # drafts whatever a pass costs here
    request = GenerationConfig(
        max_new_tokens=24,
        sampling=sampling,
        ignore_eos=True,
        speculation=SpeculationConfig(draft_len=4 if is_fixed else None),
    )
    prompt = [5, 9, 33, 5, 9, 12, 5, 9, 33, 5, 9]
    plain = generate(TokenSequence(model, 64), prompt, request)
    strategy = Methods(MethodParts(context=64)).strategy(method, is_fixed=is_fixed)
    result = generate(TokenSequence(model, 64), prompt, request, strategy)
    assert result.token_ids == plain.token_ids
    assert result.stats.failed_drafters == {}
    if method == "lookup":
        assert result.stats.n_proposed > 0
