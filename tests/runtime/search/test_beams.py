"""Beam search against transformers', and diverse beam search against a loop over whole texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgedec import Engine
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.search.beams import BeamConfig, BeamText, beam_search
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.token_tree import TokenTree

from ..conftest import Row, ToySession

V, END = 30, 7
PROMPT = [3, 5, 11, 2]


@pytest.fixture(scope="module")
def llama() -> Any:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=V, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, bos_token_id=1, eos_token_id=END, pad_token_id=END,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 12
        model.lm_head.weight[END] += 0.15
    return model


def rule_of(model: Any) -> Callable[[Sequence[int]], Row]:
    import torch

    def row(prefix: Sequence[int]) -> Row:
        with torch.no_grad():
            found: Row = model(torch.tensor([list(prefix)])).logits[0, -1].numpy()
        return found

    return row


def searched(
    rule: Callable[[Sequence[int]], Row], config: BeamConfig, context: int = 4096
) -> list[BeamText]:
    session = ToySession(V, context, rule)
    session.forward(TokenTree.chain(PROMPT[:-1]), ())
    session.commit(range(len(PROMPT) - 1))
    found = run_passes(beam_search(session, PROMPT[-1], config, frozenset({END})))
    assert list(session.tokens) == PROMPT[:-1]
    return found


@pytest.mark.parity
@pytest.mark.parametrize("length_penalty", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("n_beams", [1, 3, 4])
def test_equals_beam_search_of_transformers(
    llama: Any, n_beams: int, length_penalty: float
) -> None:
    import torch

    for max_new_tokens in (3, 12):
        out = llama.generate(
            torch.tensor([PROMPT]), attention_mask=torch.ones(1, 4, dtype=torch.long),
            num_beams=n_beams, num_return_sequences=n_beams, do_sample=False,
            max_new_tokens=max_new_tokens, length_penalty=length_penalty, early_stopping=False,
            return_dict_in_generate=True, output_scores=True,
        )  # fmt: skip
        expected = [row[len(PROMPT) :].tolist() for row in out.sequences]
        ended = [row[: row.index(END) + 1] if END in row else row for row in expected]
        config = BeamConfig(n_beams, 1, 0.0, length_penalty, max_new_tokens)
        found = searched(rule_of(llama), config)
        assert [list(text.tokens) for text in found] == ended
        if n_beams > 1:
            scores = [text.score for text in found]
            assert scores == pytest.approx(out.sequences_scores.tolist(), abs=1e-4)


def one_group_after_the_other(
    rule: Callable[[Sequence[int]], Row], config: BeamConfig
) -> list[tuple[int, ...]]:
    """Returns the texts of a diverse beam search that nothing ends, by a loop over whole texts."""
    size = config.n_beams // config.n_groups
    groups: list[list[tuple[tuple[int, ...], float]]] = [[((), 0.0)]] * config.n_groups
    for _ in range(config.max_new_tokens):
        chosen: Counter[int] = Counter()
        for g, beams in enumerate(groups):
            options = []
            for tokens, score in beams:
                row = rule([*PROMPT, *tokens]).astype(np.float64)
                row -= np.log(np.exp(row).sum())
                for token in range(V):
                    gain = row[token] - config.diversity * chosen[token]
                    options.append(((*tokens, token), score + gain))
            groups[g] = sorted(options, key=lambda option: -option[1])[:size]
            chosen.update(tokens[-1] for tokens, _ in groups[g])
    texts = [beam for beams in groups for beam in beams]
    return [tokens for tokens, _ in sorted(texts, key=lambda beam: -beam[1])]


def endless_rule(prefix: Sequence[int]) -> Row:
    rng = np.random.default_rng([len(prefix), *prefix[-2:]])
    row = (2 * rng.standard_normal(V)).astype(np.float32)
    row[END] = -50
    return row


@pytest.mark.parametrize(("n_beams", "n_groups"), [(4, 2), (4, 4), (6, 3), (3, 1)])
def test_groups_keep_away_from_what_earlier_ones_chose(n_beams: int, n_groups: int) -> None:
    config = BeamConfig(n_beams, n_groups, 0.7, 1.0, 8)
    expected = one_group_after_the_other(endless_rule, config)
    assert [text.tokens for text in searched(endless_rule, config)] == expected


def test_diversity_makes_texts_differ() -> None:
    alike = searched(endless_rule, BeamConfig(4, 4, 0.0, 1.0, 6))
    apart = searched(endless_rule, BeamConfig(4, 4, 30.0, 1.0, 6))
    assert len({text.tokens for text in alike}) == 1
    assert len({text.tokens[0] for text in apart}) == 4


def test_computes_common_beginnings_once_and_begins_its_tree_anew() -> None:
    config = BeamConfig(4, 1, 0.0, 1.0, 100)
    expected = one_group_after_the_other(endless_rule, config)
    session = ToySession(V, 4096, endless_rule)
    session.forward(TokenTree.chain(PROMPT[:-1]), ())
    session.commit(range(3))
    session.n_rows = 0
    found = run_passes(beam_search(session, PROMPT[-1], config, frozenset({END})))
    assert [text.tokens for text in found] == expected
    assert session.n_rows < 1.6 * 4 * 100


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n_beams": 0}, "n_beams is 0"),
        ({"n_beams": 65}, "at most 64"),
        ({"n_beams": 4, "n_groups": 3}, "expected a multiple of the groups"),
        ({"diversity": -1.0}, "diversity is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"length_penalty": float("nan")}, "length_penalty is nan"),
    ],
)
def test_what_makes_no_sense(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        BeamConfig(**fields)


def test_an_engine_gives_texts(make_engine: Callable[..., Engine]) -> None:
    engine = make_engine(context=200)
    found = engine.beam_search("the lazy dog", n_beams=3, max_new_tokens=5)
    assert len(found) == 3
    assert found[0].score >= found[1].score >= found[2].score
    assert found[0].text == engine.tokenizer.decode(found[0].token_ids)
    with pytest.raises(SessionError, match="the prompt"):
        engine.beam_search("the lazy dog" * 20, max_new_tokens=150)
    again = engine.score([*engine.encode("the lazy dog"), *found[0].token_ids])[-5:]
    assert found[0].log_prob == pytest.approx(sum(one.logprob for one in again), abs=1e-4)
