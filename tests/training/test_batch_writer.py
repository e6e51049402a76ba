"""Many texts written at once, by torch, against the NumPy reference of each alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.kernels import PackedMatrix, pack
from edgedec.models.config import LayerConfig
from edgedec.models.errors import ConfigError
from edgedec.models.hidden_states import normed
from edgedec.models.quant import FORMATS
from edgedec.models.reference import ReferenceModel

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features import batch_writer  # noqa: E402
from edgedec.training.features.batch_writer import BatchWriter, WritingPlan  # noqa: E402
from edgedec.training.features.feature_file import TextFeatures  # noqa: E402
from edgedec.training.features.written_rows import WrittenRows  # noqa: E402

PROMPTS = [[3, 80, 7, 7, 41, 12], [5], [66, 2, 9]]
MODELS: dict[str, dict[str, Any]] = {
    "llama": {},
    "biases": {"family": "qwen2", "has_qkv_bias": True, "is_head_tied": True},
    "gemma": {
        "family": "gemma3",
        "has_qk_norm": True,
        "has_post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": 5.0,
        "attention_softcap": 4.0,
        "logit_softcap": 3.0,
        "layers": [
            dataclasses.asdict(LayerConfig(48, 1e4, window=3)),
            dataclasses.asdict(LayerConfig(48, 1e6)),
            dataclasses.asdict(LayerConfig(48, 0.0)),
        ],
    },
}


class Held:
    """Weights of a `MemorySource`, as `BundleWeights` gives them: matrices as float32, packed."""

    def __init__(self, source: Any) -> None:
        self.shapes = {name: weight.shape for name, weight in source.weights.items()}
        self.vector = lambda name: source.weights[name]
        self._weights = source.weights

    def packed(self, name: str) -> PackedMatrix:
        fmt = FORMATS["f32"].index
        return PackedMatrix(pack(fmt, self._weights[name]), fmt, *self.shapes[name])


def greedy(source: Any, prompt: list[int], n_new: int) -> list[int]:
    model, written, tokens = ReferenceModel(source, np.float64), [], prompt
    for _ in range(n_new):
        logits = model.forward(tokens, logit_rows=[len(tokens) - 1]).logits
        model.commit(len(tokens))
        written.append(int(logits[0].argmax()))
        tokens = written[-1:]
    return written


def answers(texts: list[TextFeatures]) -> list[list[int]]:
    return [text.tokens[len(p) :].tolist() for text, p in zip(texts, PROMPTS, strict=True)]


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_each_text_alone(make_source: Callable[..., Any], name: str) -> None:
    source = make_source(**MODELS[name])
    writer = BatchWriter(Held(source), source.config)
    cache = writer.new_cache([len(prompt) for prompt in PROMPTS], 16)
    longest = max(map(len, PROMPTS))
    padded = [[0] * (longest - len(prompt)) + prompt for prompt in PROMPTS]
    rows = WrittenRows((), source.config.rms_norm_eps)
    found = [writer.logits(torch.tensor(padded), cache, rows)]
    found.append(writer.logits(torch.full((len(PROMPTS), 2), 9), cache, rows))
    for row, prompt in enumerate(PROMPTS):
        model = ReferenceModel(source, np.float64)
        for step, tokens in enumerate((prompt, [9, 9])):
            expected = model.forward(tokens, logit_rows=[len(tokens) - 1]).logits[0]
            model.commit(len(tokens))
            np.testing.assert_allclose(found[step][row], expected, atol=2e-5 * expected.std())


@pytest.mark.parametrize("n_left_out", [1, 8])
def test_texts_end_where_their_end_comes(
    make_source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, n_left_out: int
) -> None:
    monkeypatch.setattr(batch_writer, "_TILE", n_left_out)
    source = make_source()
    expected = [greedy(source, prompt, 12) for prompt in PROMPTS]
    stop = expected[1][4]
    ended = [text[: text.index(stop) + 1] if stop in text else text for text in expected]
    plan = WritingPlan(12, 0.0, frozenset({stop}), seed=0)
    n_written: list[int] = []
    writer = BatchWriter(Held(source), source.config)
    # Nothing was computed behind the last token of a text that went on to the end.
    known = [text[:11] for text in ended]
    assert answers(writer.write(PROMPTS, plan, n_written.append)) == known
    assert n_written[0] == sum(map(len, PROMPTS))
    assert sum(n_written[1:]) == sum(map(len, ended))


def test_a_text_that_ended_shows_as_much_when_passes_leave_it_out(
    make_source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_source()
    stops = [greedy(source, prompt, 12)[3 * i] for i, prompt in enumerate(PROMPTS[:2])]
    plan = WritingPlan(12, 0.0, frozenset(stops), 0, (0, 2))
    writer = BatchWriter(Held(source), source.config)
    n_rows: list[int] = []
    noted = WrittenRows.note_logits

    def note(rows: WrittenRows, logits: Any) -> None:
        n_rows.append(len(logits))
        noted(rows, logits)

    whole = writer.write(PROMPTS, plan)
    monkeypatch.setattr(batch_writer, "_TILE", 1)
    monkeypatch.setattr(WrittenRows, "note_logits", note)
    left_out = writer.write(PROMPTS, plan)
    assert n_rows[:3] == [3, 3, 2]
    assert n_rows[-1] == 1
    for one, other in zip(whole, left_out, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.top_ids, other.top_ids)
        np.testing.assert_allclose(one.hidden, other.hidden, atol=2e-3, rtol=1e-3)
        np.testing.assert_allclose(one.top_probs, other.top_probs, rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("rows", [192, 12, 3])
def test_what_a_text_showed_is_what_reading_it_shows(
    make_source: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(batch_writer, "_ROWS", rows)
    source, layers = make_source(), (0, 2)
    plan = WritingPlan(6, 0.0, frozenset(), 0, layers)
    texts = BatchWriter(Held(source), source.config).write(PROMPTS, plan)
    for text in texts:
        read = ReferenceModel(source, np.float64).forward(text.tokens.tolist())
        hidden = [normed(read.hidden[layer], source.config.rms_norm_eps) for layer in layers]
        np.testing.assert_allclose(text.hidden, np.concatenate(hidden, 1), atol=2e-3, rtol=1e-3)
        probs = np.exp(read.logits - np.logaddexp.reduce(read.logits, 1)[:, None])
        of_top = np.take_along_axis(probs, text.top_ids.astype(int), 1)
        np.testing.assert_allclose(text.top_probs, of_top, rtol=2e-3, atol=1e-7)
        assert (text.top_ids[:, 0] == probs.argmax(1)).all()


def test_a_seed_decides_what_is_drawn(make_source: Callable[..., Any]) -> None:
    writer = BatchWriter(Held(source := make_source()), source.config)
    first, again, other = (
        answers(writer.write(PROMPTS, WritingPlan(8, 1.0, frozenset(), seed))) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_what_is_drawn_follows_the_probabilities(make_source: Callable[..., Any]) -> None:
    source, n = make_source(), 4000
    logits = ReferenceModel(source).forward([5], logit_rows=[0]).logits[0].astype(np.float64)
    writer = BatchWriter(Held(source), source.config)
    drawn = writer.write([[5]] * n, WritingPlan(2, 0.5, frozenset(), seed=0))
    counts = np.bincount([text.tokens[1] for text in drawn], minlength=len(logits))
    shares = np.exp((logits - logits.max()) / 0.5)
    shares /= shares.sum()
    spread = np.sqrt(n * shares * (1 - shares))
    assert (np.abs(counts - n * shares) < 5 * spread + 3).all()


def test_writing_can_be_ended(make_source: Callable[..., Any]) -> None:
    writer = BatchWriter(Held(source := make_source()), source.config)
    plan = WritingPlan(8, 0.0, frozenset(), seed=0)
    n_written: list[int] = []
    written = writer.write(PROMPTS, plan, n_written.append, is_over=lambda: True)
    assert answers(written) == [[], [], []]
    assert n_written == [10, 3]


def test_mixtures_of_experts_are_refused(make_source: Callable[..., Any], tmp_path: Path) -> None:
    source = make_source(n_experts=4, n_experts_used=2)
    with pytest.raises(ConfigError, match="mixtures of experts"):
        BatchWriter(Held(source), source.config)
