"""Conversations that begin with messages, take a turn back, and slide when the context is full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from edgedec.models.errors import ConfigError, PromptTooLongError, SessionError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

MakeEngine = Callable[..., Engine]
SHORT = GenerationConfig(max_new_tokens=8)
SYSTEM = {"role": "system", "content": "text"}
EARLIER = [{"role": "user", "content": "fox"}, {"role": "assistant", "content": "dog"}]


def test_earlier_messages_are_part_of_the_prompt(make_engine: MakeEngine) -> None:
    begun = make_engine().conversation("text", SHORT, EARLIER)
    stream = begun.send("the lines")
    list(stream)
    asked = [SYSTEM, *EARLIER, {"role": "user", "content": "the lines"}]
    assert stream.result.token_ids == make_engine().generate(asked, SHORT).token_ids
    assert list(begun.messages[:4]) == asked


def test_a_turn_taken_back_leaves_no_trace(make_engine: MakeEngine) -> None:
    conversation = make_engine().conversation("text", SHORT)
    list(conversation.send("fox"))
    before = conversation.messages
    list(conversation.send("dog"))
    assert conversation.undo() == "dog"
    assert conversation.messages == before
    again = conversation.send("the lines")
    list(again)
    prompt = [*before, {"role": "user", "content": "the lines"}]
    assert again.result.token_ids == make_engine().generate(prompt, SHORT).token_ids
    assert conversation.undo() == "the lines"
    assert conversation.undo() == "fox"
    assert conversation.undo() is None
    assert conversation.messages == (SYSTEM,)


def test_a_full_context_keeps_the_system_prompt_and_the_latest_turns(
    make_engine: MakeEngine,
) -> None:
    engine = make_engine(context=160)
    conversation = engine.conversation("text", SHORT, is_sliding=True)
    left_out = []
    for i in range(12):
        list(stream := conversation.send(f"{i} quick brown fox"))
        left_out.append(conversation.n_left_out)
        given = [SYSTEM, *conversation.messages[1 + left_out[-1] : -1]]
        assert given[1]["role"] == "user"
        assert given[-1]["content"].startswith(f"{i} ")
        assert stream.result.n_prompt_tokens <= 160 - SHORT.max_new_tokens
    assert len(conversation.messages) == 1 + 2 * 12  # all of it can still be saved
    assert left_out == sorted(left_out)
    moves = [i for i in range(1, 12) if left_out[i] != left_out[i - 1]]
    assert moves, "the context was never full"
    assert len(moves) < 8, "half of the context is emptied at once, so that it is seldom read anew"
    asked = stream.token_ids[: stream.result.n_prompt_tokens]
    assert engine.tokenizer.decode(asked) == engine.tokenizer.decode(engine.encode(given))


def test_a_question_longer_than_the_context_is_refused(make_engine: MakeEngine) -> None:
    conversation = make_engine(context=64).conversation(config=SHORT, is_sliding=True)
    list(conversation.send("fox"))
    with pytest.raises(PromptTooLongError):
        conversation.send("quick " * 100)
    assert len(conversation.messages) == 2
    assert list(conversation.send("dog"))


def test_without_sliding_a_full_context_is_an_error(make_engine: MakeEngine) -> None:
    conversation = make_engine(context=64).conversation(config=SHORT)
    with pytest.raises(PromptTooLongError):
        for _ in range(12):
            list(conversation.send("quick brown fox"))


def test_settings_by_name(make_engine: MakeEngine) -> None:
    engine = make_engine()
    asked = GenerationConfig(max_new_tokens=9, seed=3, stop=("zebra",))
    named: dict[str, Any] = {"max_new_tokens": 9, "seed": 3, "stop": "zebra"}
    expected = engine.generate("fox", asked).token_ids
    assert engine.generate("fox", **named).token_ids == expected
    assert engine.generate("fox", asked, seed=3).token_ids == expected
    assert engine.generate_many(["fox"], **named)[0].token_ids == expected
    hot = engine.generate("fox", asked, temperature=2.0).token_ids
    assert hot != expected
    talk = engine.conversation(max_new_tokens=3)
    for asked_for, n in (({}, 3), ({"max_new_tokens": 2}, 2)):
        list(stream := talk.send("fox", **asked_for))
        assert stream.result.n_new_tokens == n


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_tokens": 3}, "it is called max_new_tokens here"),
        ({"tempratur": 1.0}, "did you mean temperature?"),
        ({"zzz": 1}, "known: "),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"stop": ("",)}, "one of stop is ''"),
        ({"sampling": None, "top_k": 3}, "expected one of them"),
    ],
)
def test_settings_that_make_no_sense(
    make_engine: MakeEngine, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        make_engine().generate("fox", **settings)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ({"role": "robot", "content": "hi"}, "use system, user, assistant or tool"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "reads text only"),
        ({"role": "user", "content": ["hi"]}, "expected {'type': 'text'"),
        ({"role": "user", "content": 5}, "expected text"),
        ("hi", "expected a mapping"),
    ],
)
def test_messages_that_make_no_sense(make_engine: MakeEngine, message: Any, said: str) -> None:
    with pytest.raises(SessionError, match=said):
        make_engine().conversation(messages=[message]).send("fox")


def test_parts_of_text_are_joined(make_engine: MakeEngine) -> None:
    engine = make_engine()
    parts = [{"type": "text", "text": "quick "}, {"type": "input_text", "text": "fox"}]
    assert engine.encode([{"role": "user", "content": parts}]) == engine.encode(
        [{"role": "user", "content": "quick fox"}]
    )


def test_a_role_that_the_template_names_is_taken(make_engine: MakeEngine) -> None:
    template = "{% for m in messages %}{% if m.role == 'document' %}{{ m.content }}{% endif %}"
    engine = make_engine(template=template + "{% endfor %}")
    message = {"role": "document", "content": "fox"}
    assert engine.encode([message]) == engine.tokenizer.encode("fox")
