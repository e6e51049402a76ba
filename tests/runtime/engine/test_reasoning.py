"""Thoughts in results, streams, conversations and choices: apart from the answer everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.tokenizer import Tokenizer

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
