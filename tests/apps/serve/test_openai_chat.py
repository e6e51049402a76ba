"""Chat completions, asked for by OpenAI's own client."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.engine.engine import Engine

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e

SKY = [{"role": "user", "content": "Why is the sky blue?"}]


@pytest.fixture
def client(server: Any) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
def chat(client: Any) -> Any:
    def ask(**fields: Any) -> Any:
        asked = {"model": "smollm2", "messages": SKY, "max_tokens": 16, "temperature": 0}
        return client.chat.completions.create(**{**asked, **fields})

    return ask


def expected(engine: Engine, n: int = 16, **fields: Any) -> str:
    return engine.generate(SKY, GenerationConfig(max_new_tokens=n, **fields)).text


def test_models_are_listed(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["smollm2"]
    assert client.models.retrieve("smollm2").meta["n_ctx"] == 8192


def test_an_answer_is_that_of_the_engine(chat: Any, engine: Engine) -> None:
    answer = chat()
    assert answer.choices[0].message.content == expected(engine)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == len(engine.encode(SKY))
    assert answer.usage.completion_tokens == 16
    assert answer.timings["predicted_n"] == 16


def test_a_stream_adds_up_to_the_answer(chat: Any, engine: Engine) -> None:
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == expected(engine)
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
    assert chunks[-1].usage.completion_tokens == 16
    assert len({chunk.id for chunk in chunks}) == 1


def test_content_may_come_in_parts(chat: Any, engine: Engine) -> None:
    parts = [{"type": "text", "text": "Why is "}, {"type": "text", "text": "the sky blue?"}]
    answer = chat(messages=[{"role": "user", "content": parts}])
    assert answer.choices[0].message.content == expected(engine)


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_prediction_changes_drafts_alone(chat: Any, engine: Engine, in_parts: bool) -> None:
    text = expected(engine)
    content = [{"type": "text", "text": text}] if in_parts else text
    prediction = {"type": "content", "content": content}
    answer = chat(prediction=prediction, extra_body={"method": "rewrite"})
    assert answer.choices[0].message.content == text
    details = answer.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 5


@pytest.mark.parametrize("prediction", ["text", {"type": "content"}, {"content": 3}])
def test_a_prediction_that_is_none_is_refused(chat: Any, prediction: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="prediction"):
        chat(prediction=prediction)


def test_several_answers_have_seeds_of_their_own(chat: Any, engine: Engine) -> None:
    answer = chat(n=2, temperature=0.9, top_p=0.95, seed=7)
    sampling = SamplingConfig(temperature=0.9, top_p=0.95)
    wanted = [expected(engine, sampling=sampling, seed=seed) for seed in (7, 8)]
    assert [choice.message.content for choice in answer.choices] == wanted
    assert wanted[0] != wanted[1]
    assert answer.usage.completion_tokens == 32


def test_without_a_seed_answers_differ(chat: Any) -> None:
    texts = {chat(temperature=1.0).choices[0].message.content for _ in range(4)}
    assert len(texts) > 1


def test_stop_penalties_and_biases_are_the_engine_s(chat: Any, engine: Engine) -> None:
    word = engine.tokenizer.encode(" sky")[0]
    answer = chat(stop=["light"], frequency_penalty=0.5, logit_bias={str(word): -100})
    sampling = SamplingConfig(frequency_penalty=0.5, logit_bias={word: float("-inf")})
    text = expected(engine, stop=("light",), sampling=sampling)
    assert answer.choices[0].message.content == text
    assert answer.choices[0].finish_reason == "stop"


def test_edgedec_s_own_fields(chat: Any, engine: Engine) -> None:
    answer = chat(extra_body={"method": "lookup", "draft_len": 3})
    assert answer.timings["method"] == "lookup"
    assert answer.choices[0].message.content == expected(engine)


def test_a_context_that_does_not_suffice_says_both_numbers(chat: Any) -> None:
    messages = [{"role": "user", "content": "hello " * 8200}]
    with pytest.raises(openai.BadRequestError) as caught:
        chat(messages=messages)
    error = caught.value.body
    assert error["type"] == "exceed_context_size_error"
    assert error["n_ctx"] == 8192
    assert error["n_prompt_tokens"] > error["n_ctx"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 99}, "n: "),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "image_url"),
        ({"logit_bias": {"word": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "99999999"),
        ({"extra_body": {"method": "magic"}}, "magic"),
    ],
)
def test_what_makes_no_sense_is_named(chat: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(**fields)
    assert words in caught.value.body["message"]
    assert caught.value.body["type"] == "invalid_request_error"


def test_a_model_that_is_not_offered(chat: Any) -> None:
    for name in ("gpt-9", "../smollm2.edgedec", "/etc/passwd"):
        with pytest.raises(openai.NotFoundError) as caught:
            chat(model=name)
        assert caught.value.code == "model_not_found"


def test_clients_in_an_event_loop(server: Any, engine: Engine) -> None:
    async def ask(client: Any) -> str:
        stream = await client.chat.completions.create(
            model="smollm2", messages=SKY, max_tokens=16, temperature=0, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def ask_all() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            return await asyncio.gather(*(ask(client) for _ in range(4)))

    assert asyncio.run(ask_all()) == [expected(engine)] * 4


def test_a_client_that_goes_away_ends_its_answer(server: Any, chat: Any, until: Any) -> None:
    stream = chat(stream=True, max_tokens=8000)
    next(iter(stream))
    until(lambda: server.service.n_running == 1)
    stream.close()
    until(lambda: server.service.n_running == 0)
    assert chat().usage.completion_tokens == 16


WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
    {"type": "web_search", "filters": None},
]


def test_an_answer_follows_its_schema(chat: Any) -> None:
    wanted = {"name": "place", "strict": True, "schema": WEATHER}
    answer = chat(response_format={"type": "json_schema", "json_schema": wanted}, max_tokens=80)
    found = json.loads(answer.choices[0].message.content)
    assert set(found) == {"city", "days"}
    assert isinstance(found["days"], int)


@pytest.mark.parametrize(
    "wanted",
    [
        {"type": "yaml"},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}},
    ],
)
def test_formats_that_nobody_knows(chat: Any, wanted: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        chat(response_format=wanted)


def test_a_call_that_is_required_fits_its_schema(chat: Any) -> None:
    answer = chat(tools=TOOLS, tool_choice="required", max_tokens=100)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "get_weather"
    found = json.loads(call.function.arguments)
    assert isinstance(found["city"], str)
    assert isinstance(found["days"], int)


def test_a_streamed_call_adds_up_to_the_call(chat: Any) -> None:
    asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 100}
    whole = chat(**asked).choices[0].message.tool_calls[0]
    pieces = [
        piece
        for chunk in chat(stream=True, **asked)
        for piece in chunk.choices[0].delta.tool_calls or []
    ]
    assert pieces[0].function.name == "get_weather"
    assert pieces[0].id
    assert len(pieces) > 2
    assert "".join(p.function.arguments or "" for p in pieces) == whole.function.arguments


def test_what_a_tool_said_is_read(chat: Any, engine: Engine) -> None:
    call = {"name": "get_weather", "arguments": '{"city": "Paris", "days": 1}'}
    messages = [
        *SKY,
        {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Rain."},
    ]
    answer = chat(messages=messages, tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content
    assert answer.usage.prompt_tokens > len(engine.encode(SKY))


def test_a_call_that_is_cut_off_says_so(chat: Any) -> None:
    answer = chat(tools=TOOLS, tool_choice="required", max_tokens=20)
    assert answer.choices[0].finish_reason == "length"


def test_a_tool_that_is_not_there(chat: Any) -> None:
    choice = {"type": "function", "function": {"name": "get_time"}}
    with pytest.raises(openai.BadRequestError, match="get_time"):
        chat(tools=TOOLS, tool_choice=choice)


def test_log_probabilities_are_the_engine_s(chat: Any, engine: Engine) -> None:
    answer = chat(logprobs=True, top_logprobs=3)
    reported = answer.choices[0].logprobs.content
    config = GenerationConfig(max_new_tokens=16, logprobs=3)
    exact = engine.generate(SKY, config).logprobs
    assert [t.logprob for t in reported] == [e.logprob for e in exact]
    assert [[one.logprob for one in t.top_logprobs] for t in reported] == [
        [p for _, p in e.top] for e in exact
    ]
    assert "".join(t.token for t in reported) == answer.choices[0].message.content
    chunks = list(chat(logprobs=True, top_logprobs=3, stream=True))
    streamed = [t for c in chunks if c.choices[0].logprobs for t in c.choices[0].logprobs.content]
    assert [t.logprob for t in streamed] == [t.logprob for t in reported]


def test_pieces_say_who_wrote_them_if_asked(chat: Any, engine: Engine) -> None:
    asked = {"max_tokens": 40, "messages": [{"role": "user", "content": "Say: a b c a b c a b c"}]}
    config = GenerationConfig(max_new_tokens=40, method="lookup")
    text = engine.generate(asked["messages"], config).text
    drafting = {"method": "lookup", "draft_len": 7, "origins": True}
    chunks = list(chat(stream=True, extra_body=drafting, **asked))
    reported = [(c.choices[0].delta.content, c.choices[0].origin) for c in chunks[1:-1]]
    assert "".join(piece for piece, _ in reported) == text
    assert {origin for _, origin in reported} == {"target", "lookup"}
    assert not any(hasattr(c.choices[0], "origin") for c in chat(stream=True, **asked))
