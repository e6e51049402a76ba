"""OpenAI's older completions, asked for by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import pytest

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.engine.engine import Engine

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.e2e

TEXT = "One, two,"


@pytest.fixture
def complete(server: Any) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)

    def ask(**fields: Any) -> Any:
        asked = {"model": "smollm2", "prompt": TEXT, "max_tokens": 8, "temperature": 0}
        return client.completions.create(**{**asked, **fields})

    return ask


def expected(engine: Engine, prompt: str = TEXT, **fields: Any) -> str:
    return engine.generate(prompt, GenerationConfig(max_new_tokens=8, **fields)).text


def test_a_completion_is_that_of_the_engine(complete: Any, engine: Engine) -> None:
    text = expected(engine)
    assert complete().choices[0].text == text
    assert complete(prompt=engine.tokenizer.encode(TEXT)).choices[0].text == text
    assert "".join(chunk.choices[0].text for chunk in complete(stream=True)) == text
    answer = complete(logprobs=2)
    assert answer.choices[0].text == text
    assert len(answer.choices[0].logprobs.token_logprobs) == 8


def test_several_prompts_are_answered_in_their_order(complete: Any, engine: Engine) -> None:
    prompts = [TEXT, "The capital of France is", "def add(a, b):"]
    sampling = {"temperature": 0.9, "top_p": 0.9}
    answer = complete(prompt=prompts, n=2, seed=7, **sampling)
    config = {"sampling": SamplingConfig(**sampling)}
    wanted = [expected(engine, p, seed=seed, **config) for p in prompts for seed in (7, 8)]
    assert [choice.text for choice in answer.choices] == wanted
    assert [choice.index for choice in answer.choices] == list(range(6))
    n_prompt = sum(len(engine.encode(p)) for p in prompts)
    assert answer.usage.prompt_tokens == n_prompt
    chunks = list(
        complete(
            prompt=prompts,
            n=2,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
            **sampling,
        )
    )
    streamed = [""] * 6
    for chunk in chunks[:-1]:
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == wanted
    assert chunks[-1].usage.total_tokens == answer.usage.total_tokens
    ids = [engine.encode(p) for p in prompts]
    assert [c.text for c in complete(prompt=ids).choices] == [expected(engine, p) for p in prompts]


def test_an_echo_says_how_likely_the_prompt_was(complete: Any, engine: Engine) -> None:
    text = expected(engine)
    assert complete(echo=True).choices[0].text == TEXT + text
    ids = engine.encode(TEXT)
    scores = [None, *(one.logprob for one in engine.score(ids))]
    reported = complete(echo=True, logprobs=2).choices[0]
    assert reported.text == TEXT + text
    assert "".join(reported.logprobs.tokens) == TEXT + text
    assert reported.logprobs.token_logprobs[: len(ids)] == scores
    assert (
        reported.logprobs.token_logprobs[len(ids) :]
        == complete(logprobs=2).choices[0].logprobs.token_logprobs
    )
    assert reported.logprobs.top_logprobs[0] is None
    assert all(len(top) == 2 for top in reported.logprobs.top_logprobs[1:])
    pieces = zip(reported.logprobs.text_offset, reported.logprobs.tokens, strict=True)
    assert all(reported.text[offset:].startswith(token) for offset, token in pieces)
    alone = complete(prompt=ids, echo=True, logprobs=0, max_tokens=0).choices[0]
    assert (alone.text, alone.finish_reason) == (TEXT, "length")
    assert alone.logprobs.token_logprobs == scores


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": []}, "0 prompts, expected 1 to 64"),
        ({"prompt": ["a"] * 65}, "65 prompts"),
        ({"prompt": ["a", ""]}, "the prompt is empty"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [[]]}, "token ids, at least one"),
        ({"prompt": [99999999]}, "token 99999999, expected 0 to 49151"),
        ({"prompt": [[1, -1]]}, "token -1, expected 0 to 49151"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"prompt": ["a", "b"], "suffix": "c"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
    ],
)
def test_what_makes_no_sense_is_named(complete: Any, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(**fields)
    assert words in caught.value.body["message"]
    assert caught.value.body["type"] == "invalid_request_error"
