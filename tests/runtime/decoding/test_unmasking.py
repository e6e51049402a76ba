"""Decoding by unmasking, over a toy that says what stands at each place and how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from edgedec import Engine, GenerationConfig
from edgedec.models.errors import ConfigError, PromptTooLongError, SessionError
from edgedec.models.graph import Capabilities
from edgedec.runtime.config import SamplingConfig, SpeculationConfig, SwitchConfig, UnmaskConfig
from edgedec.runtime.decoding.unmasking import MaskedModel, plan_blocks
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows

from ..conftest import Row, ToyModel

MASK, STOP = 300, 7
PROMPT = [20, 21, 22]
Fill = Callable[[Mapping[int, int], int], Row]
"""Place -> token of what a row sees, and the place it stands at, to logits of the token there."""


class MaskToy(ToyModel):
    """A model whose rows see all tokens of their pass; it notes what passes were over."""

    def __init__(self, vocab_size: int, fill: Fill) -> None:
        super().__init__(vocab_size)
        self.capabilities = Capabilities(blocks=True)
        self.fill = fill
        self.texts: list[tuple[int, ...]] = []

    def rows_of(self, wanted: Pass) -> Rows:
        tree = wanted.tree
        seen = dict(zip(tree.places, tree.tokens, strict=True))
        self.texts.append(tree.tokens)
        rows = [self.fill(seen, tree.places[i]) for i in wanted.logit_rows]
        return Rows(np.array(rows, np.float32))


def certain(vocab_size: int, token: int, probability: float) -> Row:
    """Returns logits that give ``token`` the probability; the others share the rest."""
    row = np.full(vocab_size, np.log((1 - probability) / (vocab_size - 1)), np.float32)
    row[token] = np.log(probability)
    return row


@pytest.fixture
def engine_of(make_engine: Callable[..., Engine], tokenizer: Any) -> Callable[..., Engine]:
    """Returns a maker of engines over a `MaskToy`."""

    def make(fill: Callable[[Mapping[int, int], int], tuple[int, float]], **fields: Any) -> Engine:
        def logits(seen: Mapping[int, int], place: int) -> Row:
            return certain(size, *fill(seen, place))

        size = tokenizer.vocab_size
        model = fields.pop("model", None) or MaskToy(size, logits)
        return make_engine(model=model, masked=MaskedModel(MASK), stop_token_ids=(STOP,), **fields)

    return make


def test_the_surest_comes_first(engine_of: Callable[..., Engine]) -> None:
    order = [4, 3, 6, 5]  # of the output, the surest first
    engine = engine_of(lambda seen, place: (40 + place, 0.9 - 0.1 * order.index(place)))
    stream = engine.stream(PROMPT, max_new_tokens=4)
    first = next(stream.pieces)
    assert first.text  # place 3 is known after two passes, and place 4 with it
    toy = engine.model
    assert isinstance(toy, MaskToy)
    assert toy.n_passes == 2
    result = stream.write()
    assert result.token_ids == (43, 44, 45, 46)
    masked = [[i for i, token in enumerate(text) if token == MASK] for text in toy.texts]
    assert masked == [[3, 4, 5, 6], [3, 5, 6], [5, 6], [5]]
    assert (result.stats.n_passes, result.stats.n_pass_tokens) == (4, 4)
    assert result.switch == {"n_rows": 4 * 7}
    assert result.finish_reason == "length"
    assert result.lossless is True
    assert stream.explain() == ["4 passes over 28 rows decided 4 tokens"]


def test_blocks_are_decided_from_left_to_right(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(lambda seen, place: (40 + place, 0.1 + 0.1 * place))
    setting = UnmaskConfig(block=2)
    result = engine.generate(PROMPT, max_new_tokens=4, unmask=setting)
    assert result.token_ids == (43, 44, 45, 46)
    masked = [[i for i, token in enumerate(t) if token == MASK] for t in engine.model.texts]
    assert masked == [[3, 4, 5, 6], [3, 5, 6], [5, 6], [5]]


def test_what_is_decided_counts_for_the_others(engine_of: Callable[..., Engine]) -> None:
    """Each token is one more than the one before it, where that is known."""

    def fill(seen: Mapping[int, int], place: int) -> tuple[int, float]:
        before = seen[place - 1]
        return (90, 0.2) if before == MASK else (before + 1, 0.8)

    engine = engine_of(fill)
    result = engine.generate(PROMPT, max_new_tokens=5)
    assert result.token_ids == (23, 24, 25, 26, 27)
    hasty = engine.generate(PROMPT, max_new_tokens=5, unmask=UnmaskConfig(steps=2))
    assert hasty.token_ids == (23, 90, 90, 91, 90)  # three at once, then two
    assert hasty.stats.n_passes == 2
    assert hasty.lossless is False


def test_a_stop_token_ends_the_work(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(lambda seen, place: (STOP if place == 5 else 40, 0.9 - 0.01 * place))
    result = engine.generate(PROMPT, max_new_tokens=30)
    assert result.token_ids == (40, 40, STOP)
    assert (result.finish_reason, result.stats.n_passes) == ("stop", 3)
    whole = engine.generate(PROMPT, max_new_tokens=30, ignore_eos=True)
    assert len(whole.token_ids) == 30


def test_the_context_bounds_the_output(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(lambda seen, place: (40, 0.9), context=8)
    result = engine.generate(PROMPT, max_new_tokens=30)
    assert (len(result.token_ids), result.finish_reason) == (5, "context")
    exact = engine.generate(PROMPT, max_new_tokens=5)
    assert (len(exact.token_ids), exact.finish_reason) == (5, "length")
    with pytest.raises(PromptTooLongError, match="the prompt has 8 tokens, the context 7"):
        engine.generate([*range(10, 18)], max_new_tokens=1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_mask_is_never_decided(
    engine_of: Callable[..., Engine], tokenizer: Any, temperature: float
) -> None:
    size = tokenizer.vocab_size

    def logits(seen: Mapping[int, int], place: int) -> Row:
        row = np.full(size, -60.0, np.float32)
        row[[MASK, 50]] = 0.0, -1.0
        return row

    engine = engine_of(lambda seen, place: (0, 0.0), model=MaskToy(size, logits))
    result = engine.generate(PROMPT, max_new_tokens=6, temperature=temperature)
    assert result.token_ids == (50,) * 6


def test_draws_depend_on_the_seed_and_follow_the_distribution(
    engine_of: Callable[..., Engine], tokenizer: Any
) -> None:
    size = tokenizer.vocab_size

    def logits(seen: Mapping[int, int], place: int) -> Row:
        row = np.full(size, -60.0, np.float32)
        row[[50, 51]] = np.log([0.7, 0.3])
        return row

    engine = engine_of(lambda seen, place: (0, 0.0), model=MaskToy(size, logits))
    texts = [
        engine.generate(PROMPT, max_new_tokens=1, temperature=1.0, seed=seed).token_ids
        for seed in range(400)
    ]
    share = texts.count((50,)) / len(texts)
    assert abs(share - 0.7) < 4 * (0.7 * 0.3 / 400) ** 0.5
    again = engine.generate(PROMPT, max_new_tokens=1, temperature=1.0, seed=3).token_ids
    assert again == texts[3]


def test_nothing_is_kept_between_texts(engine_of: Callable[..., Engine]) -> None:
    engine = engine_of(lambda seen, place: (40, 0.9))
    for _ in range(2):
        result = engine.generate(PROMPT, max_new_tokens=4)
        assert result.stats.n_reused_tokens == 0
        assert result.stats.n_prefill_tokens == len(PROMPT)
    stream = engine.stream(PROMPT, max_new_tokens=4)
    next(stream)
    stream.stop()
    assert stream.result.finish_reason == "cancelled"
    assert engine.generate(PROMPT, max_new_tokens=4).token_ids == (40,) * 4


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("method lookup", {"method": "lookup"}),
    ("verifier", {"verifier": "deterministic"}),
    ("switch", {"switch": SwitchConfig(policy="ead")}),
    ("speculation", {"speculation": SpeculationConfig(draft_len=3)}),
    ("logprobs", {"logprobs": 2}),
    ("json_schema", {"json_schema": "{}"}),
    ("prefix", {"prefix": "a"}),
    ("sampling with biases", {"sampling": SamplingConfig(repetition_penalty=1.1)}),
    ("sampling with biases", {"sampling": SamplingConfig(temperature=1.0, mirostat=2)}),
]


@pytest.mark.parametrize(("name", "fields"), REFUSED, ids=[name for name, _ in REFUSED])
def test_what_needs_a_left_to_right_model_is_refused(
    engine_of: Callable[..., Engine], name: str, fields: dict[str, Any]
) -> None:
    engine = engine_of(lambda seen, place: (40, 0.9))
    with pytest.raises(ConfigError, match=f"^{name}.* needs a model that writes from left to"):
        engine.generate(PROMPT, GenerationConfig(max_new_tokens=4, **fields))
    for method in ("plain", "auto"):
        assert len(engine.generate(PROMPT, max_new_tokens=4, method=method).token_ids) == 4


def test_calls_that_need_a_left_to_right_model_are_refused(
    engine_of: Callable[..., Engine], tmp_path: Any
) -> None:
    engine = engine_of(lambda seen, place: (40, 0.9))
    calls: Sequence[Callable[[], Any]] = (
        lambda: engine.suggest("a"),
        lambda: engine.score("ab"),
        lambda: engine.embed(["a"]),
        lambda: engine.beam_search("a"),
        lambda: engine.quote("a", "b"),
        lambda: engine.best_of("a", 2, temperature=1.0),
        lambda: engine.save_session(tmp_path / "s"),
        lambda: engine.load_session(tmp_path / "s"),
    )
    for call in calls:
        with pytest.raises(SessionError, match="need a model that writes from left to right"):
            call()


def test_unmasking_needs_masks(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigError, match="unmask is for models that fill masks in"):
        make_engine().generate(PROMPT, max_new_tokens=4, unmask=UnmaskConfig())


@pytest.mark.parametrize(
    ("n_new", "setting", "expected"),
    [
        (5, UnmaskConfig(), [(range(3, 8), 5)]),
        (5, UnmaskConfig(steps=9), [(range(3, 8), 5)]),
        (6, UnmaskConfig(steps=4, block=3), [(range(3, 6), 2), (range(6, 9), 2)]),
        (7, UnmaskConfig(steps=5, block=4), [(range(3, 7), 3), (range(7, 10), 2)]),
        (7, UnmaskConfig(block=4), [(range(3, 7), 4), (range(7, 10), 3)]),
        (3, UnmaskConfig(block=9), [(range(3, 6), 3)]),
    ],
    ids=str,
)
def test_blocks(n_new: int, setting: UnmaskConfig, expected: list[tuple[range, int]]) -> None:
    blocks = plan_blocks(3, n_new, setting)
    assert [(block.places, block.n_steps) for block in blocks] == expected
    for block in blocks:
        due = [block.n_due(step) for step in range(block.n_steps)]
        assert sum(due) == len(block.places)
        assert due == sorted(due, reverse=True)


def test_more_blocks_than_steps() -> None:
    with pytest.raises(ConfigError, match="unmask steps is 2, expected at least 4"):
        plan_blocks(3, 8, UnmaskConfig(steps=2, block=2))
