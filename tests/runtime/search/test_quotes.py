"""The likeliest quote, against every span of a text scored one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest

from edgedec import Engine
from edgedec.models.errors import ConfigError, SessionError
from edgedec.models.graph import Capabilities
from edgedec.runtime.search.quote import QuotedSpan, Search
from edgedec.runtime.search.quoting import Quote, cut
from edgedec.runtime.search.spans import Spans, token_ends
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.runtime.text.tokenizer import Tokenizer

from ..conftest import Row, ToyModel, one_hot

END = 2
QUESTION = "Which?"
TEXT = "the lazy dog naïve café  日本語 over the lazy dog; jumps over\n\ntext text"
Rule = Callable[[Sequence[int]], Row]


def random_rule(seed: int, scale: float, vocab_size: int) -> Rule:
    """Returns rows that depend on the last tokens; the smaller the scale, the less likely any."""

    @cache
    def row(*last: int) -> Row:
        rng = np.random.default_rng([seed, *last])
        return (scale * rng.standard_normal(vocab_size)).astype(np.float32)

    return lambda prefix: row(*prefix[-3:])


def rule_that_says(answer: Sequence[int], vocab_size: int) -> Rule:
    """Returns rows that are sure of an answer, and of its end."""
    said = [*answer, END]

    def row(prefix: Sequence[int]) -> Row:
        n = next(n for n in range(len(answer), -1, -1) if prefix[len(prefix) - n :] == said[:n])
        return 2 * one_hot(vocab_size, said[n])

    return row


def prompt_of(engine: Engine, text: str) -> list[int]:
    asked = f"{text}\n\n{QUESTION}\nAnswer with a short quote from the text, and nothing else."
    return engine.encode([{"role": "user", "content": asked}])


def spans_of(codec: Tokenizer, text: str, most: int) -> set[tuple[int, ...]]:
    """Returns the tokens of every span, by its own loop."""
    stream, starts = codec.detokenizer(), {0}
    for token in codec.encode(text):
        starts.add(max(starts) + len(stream.push(token)))
    found = set()
    for start in starts:
        while start < len(text) and text[start].isspace():
            start += 1
        blanks = ["", " "] if text[:start][-1:].isspace() else [""]
        for blank in blanks:
            ids = codec.encode(blank + text[start:]) if start < len(text) else []
            found |= {tuple(ids[:n]) for n in range(1, min(most, len(ids)) + 1)}
    return found


def log_prob_of(rule: Rule, prompt: list[int], ids: Sequence[int]) -> float:
    """Returns the log-probability of tokens behind a prompt."""
    total = 0.0
    for i, token in enumerate(ids):
        row = rule([*prompt, *ids[:i]]).astype(np.float64)
        total += row[token] - np.log(np.exp(row).sum())
    return total


def one_by_one(
    rule: Rule, prompt: list[int], codec: Tokenizer, text: str, most: int
) -> dict[str, float]:
    """Returns the log-probability of every span."""
    found: dict[str, float] = {}
    for ids in spans_of(codec, text, most):
        quoted = codec.decode(list(ids)).strip()
        if quoted and quoted in text:
            total = log_prob_of(rule, prompt, [*ids, END])
            found[quoted] = max(total, found.get(quoted, -math.inf))
    return found


def check_equal(found: Quote, expected: dict[str, float], text: str) -> None:
    ranked = sorted(expected, key=lambda span: -expected[span])[:2]
    assert found.runner_up is not None
    assert [found.text, found.runner_up.text] == ranked
    for span in (found.best, found.runner_up):
        assert span.log_prob == pytest.approx(expected[span.text], abs=1e-4)
        assert text.startswith(span.text, span.offset)


@pytest.mark.parametrize("scale", [0.1, 2.0, 8.0])
@pytest.mark.parametrize("seed", range(4))
def test_equals_every_span_one_by_one(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, seed: int, scale: float
) -> None:
    rule = random_rule(seed, scale, tokenizer.vocab_size)
    engine = make_engine(rule, context=800, stop_token_ids=(END,))
    found = engine.quote(QUESTION, TEXT, max_tokens=6)
    check_equal(found, one_by_one(rule, prompt_of(engine, TEXT), tokenizer, TEXT, 6), TEXT)


@pytest.mark.parametrize("room", [7, 30, 300])
def test_begins_its_tree_anew_where_the_context_ends(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer, room: int
) -> None:
    rule = random_rule(5, 0.5, tokenizer.vocab_size)
    engine = make_engine(rule, context=800, stop_token_ids=(END,))
    prompt = prompt_of(engine, TEXT)
    sequence = TokenSequence(engine.model, len(prompt) - 1 + room)
    sequence.forward(TokenTree.chain(prompt[:-1]), ())
    sequence.commit(range(len(prompt) - 1))
    search = Search(Spans(tokenizer, TEXT, 6), frozenset({END}), tokenizer.decode)
    run_passes(search.run(sequence, prompt[-1]))
    expected = one_by_one(rule, prompt, tokenizer, TEXT, 6)
    assert [span.text for span in search.best] == sorted(expected, key=lambda s: -expected[s])[:2]
    assert list(sequence.tokens) == prompt[:-1]


def test_a_graph_without_trees_computes_one_place_a_pass(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    class Chains(ToyModel):
        def rows_of(self, wanted):  # type: ignore[no-untyped-def]
            assert wanted.tree.is_chain
            return super().rows_of(wanted)

    rule = random_rule(1, 3.0, tokenizer.vocab_size)
    model = Chains(tokenizer.vocab_size, rule)
    model.capabilities = Capabilities(trees=False)
    engine = make_engine(model=model, context=800, stop_token_ids=(END,))
    found = engine.quote(QUESTION, TEXT, max_tokens=4)
    assert found.n_passes == found.n_computed
    check_equal(found, one_by_one(rule, prompt_of(engine, TEXT), tokenizer, TEXT, 4), TEXT)


def test_computes_few_places_where_the_model_is_sure(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    rule = rule_that_says(tokenizer.encode("dog; jumps"), tokenizer.vocab_size)
    found = make_engine(rule, context=800, stop_token_ids=(END,)).quote(QUESTION, TEXT)
    assert found.text == "dog; jumps"
    assert found.probability > 0.9
    assert found.best.offset == TEXT.index("dog; jumps")
    assert found.n_passes < 0.05 * found.n_spans


def test_is_never_less_likely_than_greedy(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    n_better = 0
    spans = spans_of(tokenizer, TEXT, 6)
    for seed in range(10):
        rule = random_rule(seed, 3.0, tokenizer.vocab_size)
        engine = make_engine(rule, context=800, stop_token_ids=(END,))
        prompt = prompt_of(engine, TEXT)
        said: tuple[int, ...] = ()
        while said[-1:] != (END,):
            n = len(said)
            allowed = {ids[n] for ids in spans if len(ids) > n and ids[:n] == said}
            allowed |= {END} if said else set()
            row = rule([*prompt, *said])
            said = (*said, max(allowed, key=lambda token: row[token]))
        total = log_prob_of(rule, prompt, said)
        found = engine.quote(QUESTION, TEXT, max_tokens=6).best.log_prob
        assert found >= total - 1e-4
        n_better += found > total + 1e-4
    assert n_better > 0


def test_a_long_text_is_read_in_parts(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    rule = rule_that_says(tokenizer.encode("jumps over"), tokenizer.vocab_size)
    engine = make_engine(rule, context=640, stop_token_ids=(END,))
    text = "lazy dogs " * 300 + "jumps over" + " the lazy fox" * 200
    reported: list[tuple[str, int, int]] = []
    found = engine.quote(QUESTION, text, 10, lambda *progress: reported.append(progress))
    assert (found.text, found.best.offset) == ("jumps over", 3000)
    assert found.n_parts > 3
    assert reported == [("quote", i + 1, found.n_parts) for i in range(found.n_parts)]


@pytest.mark.slow
def test_a_long_text_is_cut_into_parts_that_fit(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox, 日本語, jumps over the lazy dog.\n" * 1_800
    parts = list(cut(tokenizer, text, 1024, 60))
    assert max(len(tokenizer.encode(part)) for _, part in parts[:: len(parts) // 50]) <= 1024
    assert all(text.startswith(part, start) for start, part in parts)
    assert parts[-1][0] + len(parts[-1][1]) == len(text)
    ends = [start + len(part) for start, part in parts]
    assert all(start < end for (start, _), end in zip(parts[1:], ends, strict=False))


@pytest.mark.parametrize("most", [12, 40, 1000])
def test_every_span_lies_whole_in_a_part(tokenizer: Tokenizer, most: int) -> None:
    text = "  " + TEXT * 5 + " \n"
    parts = list(cut(tokenizer, text, most, 4))
    assert parts[0][0] == 0
    assert parts[-1][0] + len(parts[-1][1]) == len(text)
    for start, part in parts:
        assert text.startswith(part, start)
        assert len(tokenizer.encode(part)) <= most
    ends = [0, *token_ends(tokenizer, text)]
    for first, last in zip(ends, ends[4:], strict=False):
        assert any(start <= first and last <= start + len(part) for start, part in parts)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("question", "text", "most", "reason"),
    [
        (QUESTION, "", 30, "the text is '': expected text, and not only blanks"),
        (QUESTION, " \n\t", 30, "not only blanks"),
        ("  ", TEXT, 30, "the question is '  '"),
        (QUESTION, 7, 30, "the text is 7"),
        (QUESTION, TEXT, 0, "max_tokens is 0"),
    ],
)
def test_bad_requests(
    make_engine: Callable[..., Engine], question: str, text: str, most: int, reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        make_engine(context=800).quote(question, text, most)


@pytest.mark.robustness
def test_a_question_that_leaves_no_room(make_engine: Callable[..., Engine]) -> None:
    with pytest.raises(SessionError, match="leaves 0 tokens of a context of 300"):
        make_engine(context=300).quote(QUESTION * 60, TEXT)


@pytest.mark.robustness
def test_logits_that_are_no_numbers(
    make_engine: Callable[..., Engine], tokenizer: Tokenizer
) -> None:
    rows = np.full(tokenizer.vocab_size, np.nan, np.float32)
    engine = make_engine(lambda prefix: rows, context=800, stop_token_ids=(END,))
    with pytest.raises(SessionError, match="the logits sum up to nan"):
        engine.quote(QUESTION, TEXT)


def test_says_what_it_found(make_engine: Callable[..., Engine]) -> None:
    span, other = QuotedSpan("dog", 3, math.log(0.5)), QuotedSpan("fox", 9, math.log(0.25))
    assert Quote(span, other, 10, 2, 3, 1).to_dict() == {
        "text": "dog",
        "offset": 3,
        "probability": pytest.approx(0.5),
        "runner_up": {"text": "fox", "offset": 9, "probability": pytest.approx(0.25)},
        "n_spans": 10,
        "n_passes": 2,
        "n_computed": 3,
        "n_parts": 1,
    }
