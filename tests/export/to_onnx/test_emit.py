"""The portable graph in ONNX Runtime against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgedec.export.to_onnx.emit import emit_portable
from edgedec.export.to_onnx.runners import PortableRunner, open_session
from edgedec.models.errors import ConfigError
from edgedec.models.reference import ReferenceModel
from edgedec.models.rope import rope_tables

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5]
CONTEXT = 32
FAMILIES = [
    pytest.param({}, id="llama"),
    pytest.param({"is_head_tied": True, "n_kv_heads": 4}, id="llama_tied_without_gqa"),
    pytest.param({"family": "qwen2", "has_qkv_bias": True}, id="qwen2"),
    pytest.param({"family": "qwen2", "has_qkv_bias": True, "is_head_tied": True}, id="qwen2_tied"),
]

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("fields", FAMILIES)
@pytest.mark.parametrize(
    "passes", [[9], [1] * 9, [4, 1, 3, 1]], ids=["prefill", "token_by_token", "continued"]
)
def test_chain(make_source: Any, write_graph: Any, fields: dict[str, Any], passes: Any) -> None:
    source = make_source(**fields)
    runner = PortableRunner(write_graph(emit_portable(source.config), source), source.config)
    expected = ReferenceModel(source).forward(TOKENS).logits
    start = 0
    for n in passes:
        logits = runner.compute_logits(TOKENS[start : start + n], range(-1, n - 1), n_past=start)
        np.testing.assert_allclose(logits, expected[start : start + n], atol=1e-5)
        start += n


@pytest.mark.parametrize("n_past", [0, 4])
def test_tree(make_source: Any, write_graph: Any, n_past: int) -> None:
    source = make_source()
    runner = PortableRunner(write_graph(emit_portable(source.config), source), source.config)
    reference = ReferenceModel(source)
    if n_past:
        runner.compute_logits(TOKENS[:n_past], range(-1, n_past - 1))
        reference.forward(TOKENS[:n_past])
        reference.commit(n_past)
    tree = [10, 20, 30, 40, 50, 60], [-1, -1, 0, 1, 2, 2]
    logits = runner.compute_logits(*tree, n_past=n_past)
    np.testing.assert_allclose(logits, reference.forward(*tree).logits, atol=1e-5)


def test_hidden_outputs_and_logit_rows(make_source: Any, write_graph: Any) -> None:
    source = make_source()
    layers = (0, 2, 3)
    session = open_session(write_graph(emit_portable(source.config, layers), source))
    n = len(TOKENS)
    empty = np.zeros((1, source.config.n_kv_heads, 0, source.config.head_size), np.float32)
    feeds = {
        "input_ids": np.array([TOKENS]),
        "position_ids": np.arange(n)[None],
        "attention_bias": np.triu(np.full((n, n), -1e9, np.float32), 1)[None, None],
        "logit_rows": np.array([n - 1, 2]),
    }
    feeds |= {v.name: empty for v in session.get_inputs() if v.name.startswith("past_")}
    feeds |= dict(zip(("rope.cos", "rope.sin"), rope_tables(source.config, n), strict=True))
    logits, *hidden = session.run(["logits", *(f"hidden.{i}" for i in layers)], feeds)
    expected = ReferenceModel(source).forward(TOKENS)
    np.testing.assert_allclose(logits[0], expected.logits[[n - 1, 2]], atol=1e-5)
    for layer, states in zip(layers, hidden, strict=True):
        np.testing.assert_allclose(states[0], expected.hidden[layer], atol=1e-5)
    assert sum(v.name.startswith("hidden.") for v in session.get_outputs()) == len(layers)


@pytest.mark.parametrize("layer", [-1, 4])
def test_hidden_layer_that_does_not_exist(make_source: Any, layer: int) -> None:
    with pytest.raises(ConfigError, match=f"hidden layer {layer}: expected 0 to 3"):
        emit_portable(make_source().config, [layer])


def test_graph_holds_no_weights(make_source: Any) -> None:
    source = make_source(vocab_size=5000, hidden_size=512, intermediate_size=2048)
    assert emit_portable(source.config).ByteSize() < 30_000
