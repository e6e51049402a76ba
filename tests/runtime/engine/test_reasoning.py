"""Thoughts in results, streams, conversations and choices: apart from the answer everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tokenizers

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.prompt import PromptEncoder
from edgedec.runtime.text.tokenizer import Tokenizer

from ..conftest import ToyModel

MESSAGES = [{"role": "user", "content": "fox"}]
TEMPLATE = (
    "{% for m in messages %}{% if m.reasoning_content %}({{ m.reasoning_content }}) {% endif %}"
    "{{ m.content }}{% endfor %}{# </think> #}"
)
OPENING = TEMPLATE + "<think>"
SAID = "<think>\nquick brown\n</think>\n\nlazy dog"

Rule = Callable[[Sequence[int]], Any]


def scripted(tokenizer: Tokenizer, text: str, n_prompt: int, end: int) -> Rule:
    """Returns a model that says ``text`` behind its prompt, then ``end``."""
    ids = [*tokenizer.encode(text), end]

    def rule(tokens: Sequence[int]) -> Any:
        row = np.zeros(tokenizer.vocab_size, np.float32)
        row[ids[min(max(0, len(tokens) - n_prompt), len(ids) - 1)]] = 20.0
        return row

    return rule


@pytest.fixture
def says(make_engine: Callable[..., Engine], tokenizer: Tokenizer) -> Callable[..., Engine]:
    """Returns a maker of engines whose model says a text."""

    def make(text: str, template: str = TEMPLATE, prompt: Any = MESSAGES) -> Engine:
        n_prompt = len(make_engine(template=template).encode(prompt))
        end = tokenizer.vocab_size - 1
        rule = scripted(tokenizer, text, n_prompt, end)
        return make_engine(rule, template=template, stop_token_ids=(end,))

    return make


def test_a_thought_is_no_part_of_the_text(says: Callable[..., Engine]) -> None:
    engine = says(SAID)
    result = engine.generate(MESSAGES)
    assert (result.text, result.reasoning) == ("lazy dog", "quick brown")
    said = [engine.tokenizer.decode(result.token_ids[:n]) for n in range(result.n_new_tokens)]
    assert result.n_reasoning_tokens == next(n for n, t in enumerate(said) if "</think>" in t)
    assert result.stop_token == engine.stop_token_ids[0]
    assert "".join(engine.stream(MESSAGES)) == "lazy dog"
    pieces = list(engine.stream(MESSAGES).pieces)
    assert "".join(piece.text for piece in pieces if piece.is_thought) == "quick brown"
    assert engine.generate_many([MESSAGES])[0].reasoning == "quick brown"
    assert engine.best_of(MESSAGES, 2, temperature=0.1).text == "lazy dog"
    assert result.to_dict()["reasoning"] == "quick brown"


def test_a_template_may_begin_the_thought(says: Callable[..., Engine]) -> None:
    result = says("quick brown</think>lazy dog", OPENING).generate(MESSAGES)
    assert (result.text, result.reasoning) == ("lazy dog", "quick brown")


def test_plain_text_has_no_thoughts(says: Callable[..., Engine]) -> None:
    result = says(SAID, prompt="fox").generate("fox")
    assert (result.text, result.reasoning) == (SAID, "")


def test_stop_texts_are_looked_for_in_the_answer(says: Callable[..., Engine]) -> None:
    result = says(SAID).generate(MESSAGES, stop=["brown", " dog", "\n"])
    assert (result.text, result.reasoning) == ("lazy", "quick brown")
    assert (result.finish_reason, result.stop_text, result.stop_token) == ("stop", " dog", None)


def test_log_probabilities_join_to_the_text(says: Callable[..., Engine]) -> None:
    result = says(SAID).generate(MESSAGES, stop=["og"], logprobs=1)
    assert len(result.logprobs) == result.n_new_tokens
    assert "".join(one.text for one in result.text_logprobs) == result.text == "lazy d"
    assert b"".join(one.spelling for one in result.text_logprobs) == b"lazy d"


def test_a_conversation_keeps_thoughts_for_its_template(says: Callable[..., Engine]) -> None:
    engine = says(SAID)
    conversation = engine.conversation()
    list(conversation.send("fox"))
    answer = {"role": "assistant", "content": "lazy dog", "reasoning_content": "quick brown"}
    assert conversation.messages[1] == answer
    rendered = engine.encoder.render([*conversation.messages, MESSAGES[0]])
    assert rendered == "fox(quick brown) lazy dogfox"


@pytest.mark.parametrize("name", ["reasoning", "thinking", "reasoning_content"])
def test_templates_find_thoughts_by_any_name(says: Callable[..., Engine], name: str) -> None:
    messages = [{"role": "assistant", "content": "dog", name: "quick"}]
    assert says(SAID).encoder.render(messages) == "(quick) dog"


SCHEMA = {
    "type": "object",
    "properties": {"a": {"const": 1}},
    "required": ["a"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("template", [TEMPLATE, OPENING])
@pytest.mark.parametrize("method", ["plain", "lookup", "grammar"])
def test_a_schema_begins_after_the_thought(
    says: Callable[..., Engine], template: str, method: str
) -> None:
    """The model would go on with other words: the schema lets it think, and no further."""
    opening = "" if template == OPENING else "<think>"
    engine = says(f"{opening}quick [1] brown</think>\n\nlazy dog", template)
    result = engine.generate(MESSAGES, json_schema=SCHEMA, method=method)
    assert (result.reasoning, json.loads(result.text)) == ("quick [1] brown", {"a": 1})
    assert result.finish_reason == "stop"


def test_a_schema_holds_at_once_where_nothing_is_thought(says: Callable[..., Engine]) -> None:
    for said, template in [("{lazy", TEMPLATE), (SAID, TEMPLATE + "<think>\n\n</think>\n\n")]:
        result = says(said, template).generate(MESSAGES, json_schema=SCHEMA)
        assert (result.reasoning, json.loads(result.text)) == ("", {"a": 1})


def test_no_stop_token_ends_a_thought_before_the_schema(says: Callable[..., Engine]) -> None:
    engine = says("quick", OPENING)
    result = engine.generate(MESSAGES, json_schema=SCHEMA, max_new_tokens=20)
    assert (result.text, result.finish_reason) == ("", "length")
    assert result.n_reasoning_tokens == 20


THOUGHT = "quick 日 brown fox"


def musing(tokenizer: Tokenizer, n_prompt: int, begin: list[int], answer: str, end: int) -> Rule:
    """Returns a model that thinks ``THOUGHT`` again and again, and answers once that was closed."""
    thought = tokenizer.encode(THOUGHT)
    said = [*tokenizer.encode(answer), end]

    def rule(tokens: Sequence[int]) -> Any:
        row = np.zeros(tokenizer.vocab_size, np.float32)
        written = list(tokens[n_prompt:])
        closing = next(
            (i for i in range(len(written)) if closes(tokenizer, written[: i + 1])), None
        )
        if closing is not None:
            row[said[min(len(written) - closing - 1, len(said) - 1)]] = 20.0
        elif len(written) < len(begin):
            row[begin[len(written)]] = 20.0
        else:
            row[thought[(len(written) - len(begin)) % len(thought)]] = 20.0
        return row

    return rule


def closes(tokenizer: Tokenizer, written: list[int]) -> bool:
    text = tokenizer.named(written)
    return text.endswith(("</think>\n\n", "final<|message|>"))


def thought_of(tokenizer: Tokenizer, budget: int) -> str:
    """Returns what so many tokens spell; a character that they begin is completed."""
    ids = tokenizer.encode(THOUGHT) * (budget + 1)
    n = next(n for n in range(budget, budget + 4) if "\ufffd" not in tokenizer.decode(ids[:n]))
    return tokenizer.decode(ids[:n]).strip("\n")


@pytest.mark.parametrize("fields", [{}, {"json_schema": SCHEMA}, {"bad_words_ids": [(1,)]}])
@pytest.mark.parametrize("template", [TEMPLATE, OPENING])
@pytest.mark.parametrize("method", ["plain", "lookup"])
def test_a_thought_ends_when_its_budget_is_spent(
    make_engine: Callable[..., Engine],
    tokenizer: Tokenizer,
    template: str,
    method: str,
    fields: Any,
) -> None:
    n_prompt = len(make_engine(template=template).encode(MESSAGES))
    begin, end = "" if template == OPENING else "<think>\n", tokenizer.vocab_size - 1
    rule = musing(tokenizer, n_prompt, tokenizer.encode(begin), "lazy dog", end)
    engine = make_engine(rule, template=template, stop_token_ids=(end,))
    n_break = 0 if template == OPENING else 1  # the line break behind the mark is a token, too
    for budget in (n_break, 3, 7, 8, 9, 10, 30):
        result = engine.generate(MESSAGES, method=method, thought_budget=budget, **fields)
        assert result.reasoning == thought_of(tokenizer, budget - n_break), budget
        if "json_schema" in fields:
            assert json.loads(result.text) == {"a": 1}
        else:
            assert (result.text, result.finish_reason) == ("lazy dog", "stop")
    endless = engine.generate(MESSAGES, method=method, max_new_tokens=90, **fields)
    assert (endless.text, endless.finish_reason) == ("", "length")


def test_a_thought_within_its_budget_stays_as_it_is(says: Callable[..., Engine]) -> None:
    engine = says(SAID)
    expected = engine.generate(MESSAGES)
    n = expected.n_reasoning_tokens  # with its marks
    assert engine.generate(MESSAGES, thought_budget=n).token_ids == expected.token_ids
    assert engine.generate("fox", thought_budget=0).token_ids == engine.generate("fox").token_ids
    plain = says("lazy dog <think>quick")
    assert plain.generate(MESSAGES, thought_budget=0).text == "lazy dog <think>quick"


def channels(trained: str) -> Tokenizer:
    backend = tokenizers.Tokenizer.from_str(trained)
    backend.add_special_tokens(["<|start|>", "<|channel|>", "<|message|>", "<|end|>"])
    return Tokenizer(backend)


@pytest.mark.parametrize("fields", [{}, {"json_schema": SCHEMA}])
def test_a_budget_ends_a_channel(
    make_engine: Callable[..., Engine], trained: str, fields: Any
) -> None:
    tokenizer, end = channels(trained), 0  # an end of text
    encoder = PromptEncoder(tokenizer, ChatTemplate("{{ messages[0].content }}<|start|>assistant"))
    begin = tokenizer.encode_rendered("<|channel|>analysis<|message|>", {})
    rule = musing(tokenizer, len(encoder.encode(MESSAGES)), begin, "lazy dog", end)
    engine = make_engine(model=ToyModel(tokenizer.vocab_size, rule), codec=tokenizer,
                         encoder=encoder, stop_token_ids=(end,))  # fmt: skip
    for budget in (0, 5, 40):
        result = engine.generate(MESSAGES, thought_budget=budget, **fields)
        assert result.reasoning == thought_of(tokenizer, budget)
        assert result.text == "lazy dog" or json.loads(result.text) == {"a": 1}
        assert result.finish_reason == "stop"


def test_a_schema_is_the_last_channel(make_engine: Callable[..., Engine], trained: str) -> None:
    """As gpt-oss writes: each part has a name, and the answer is the one called final."""
    tokenizer = channels(trained)
    said = (
        "<|channel|>analysis<|message|>quick brown<|end|>"
        "<|start|>assistant<|channel|>final<|message|>lazy dog"
    )
    ids = tokenizer.encode_rendered(said, {})
    template = ChatTemplate("{{ messages[0].content }}<|start|>assistant")
    encoder = PromptEncoder(tokenizer, template)
    n_prompt, end = len(encoder.encode(MESSAGES)), 0  # an end of text

    def rule(tokens: Sequence[int]) -> Any:
        row = np.zeros(tokenizer.vocab_size, np.float32)
        row[[*ids, end][min(max(0, len(tokens) - n_prompt), len(ids))]] = 20.0
        return row

    engine = make_engine(model=ToyModel(tokenizer.vocab_size, rule), codec=tokenizer,
                         encoder=encoder, stop_token_ids=(end,))  # fmt: skip
    free = engine.generate(MESSAGES)
    assert (free.text, free.reasoning) == ("lazy dog", "quick brown")
    result = engine.generate(MESSAGES, json_schema=SCHEMA)
    assert (result.reasoning, json.loads(result.text)) == ("quick brown", {"a": 1})
