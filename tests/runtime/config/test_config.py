"""Options that make no sense are refused early, in one line."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperature": -1}, "temperature is -1, expected"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": -1}, "top_k is -1, expected a whole number"),
        ({"top_k": 1.5}, "top_k is 1.5"),
        ({"top_p": 0}, "top_p is 0, expected above 0"),
        ({"top_p": 1.01}, "top_p is 1.01, expected a number from 0 to 1"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": float("inf")}, "presence_penalty is inf"),
        ({"logit_bias": {-4: 1.0}}, "token of logit_bias is -4"),
        ({"logit_bias": {4: float("nan")}}, "logit_bias of token 4 is nan"),
        (
            {"heat": 1},
            "unknown SamplingConfig key 'heat'; known: bad_words_ids, begin_suppress_tokens",
        ),
    ],
)
def test_bad_sampling(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        SamplingConfig.from_dict(fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0, expected"),
        ({"seed": -1}, "seed is -1"),
        ({"stop": 5}, "stop is 5, expected a text, or several"),
        ({"stop": ("",)}, "one of stop is ''"),
        ({"stop_token_ids": (2.0,)}, "one of stop_token_ids is 2.0"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
        ({"sampling": 3}, "sampling is 3"),
        ({"max_tokens": 3}, "'max_tokens'; did you mean max_new_tokens? known: grammar, "),
    ],
)
def test_bad_request(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        GenerationConfig.from_dict(fields)
    assert message in str(caught.value)


def test_from_dict_reads_nested_json() -> None:
    fields = {"max_new_tokens": 5, "stop": ["a"], "sampling": {"logit_bias": {"3": 1.0}}}
    config = GenerationConfig.from_dict(fields)
    assert config.stop == ("a",)
    assert config.sampling.logit_bias == {3: 1.0}


def test_bundle_recommendation_samples_only_when_it_says_so() -> None:
    fields = {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.1, "eos_token_id": [2]}
    assert GenerationConfig.from_bundle(fields).sampling == SamplingConfig(repetition_penalty=1.1)
    sampling = GenerationConfig.from_bundle({**fields, "do_sample": True}).sampling
    assert sampling == SamplingConfig(temperature=0.7, top_k=20, repetition_penalty=1.1)


def test_tokens_outside_the_vocabulary() -> None:
    config = GenerationConfig(sampling=SamplingConfig(logit_bias={100: 1.0}))
    with pytest.raises(ConfigError, match="logit_bias names token 100, expected 0 to 99"):
        config.check_vocabulary(100)
    config.check_vocabulary(101)


def test_a_class_of_pydantic_stands_for_its_schema() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Fox(pydantic.BaseModel):  # type: ignore[misc, name-defined, unused-ignore]
        name: str
        age: int = 3

    assert GenerationConfig(json_schema=Fox) == GenerationConfig(
        json_schema=Fox.model_json_schema()
    )
    several = pydantic.TypeAdapter(list[Fox])
    assert GenerationConfig(json_schema=several).json_schema == several.json_schema()


def test_other_classes_are_refused() -> None:
    class Broken:
        @classmethod
        def model_json_schema(cls) -> dict[str, object]:
            raise ValueError("no schema\nof mine")

    with pytest.raises(ConfigError, match=r"^json_schema is .*has no schema: no schema$"):
        GenerationConfig(json_schema=Broken)
    with pytest.raises(ConfigError, match="expected a mapping or JSON text"):
        GenerationConfig(json_schema=int)


def test_pydantic_is_not_imported_for_a_mapping() -> None:
    program = (
        "import sys; from edgedec.runtime.config import GenerationConfig; "
        "GenerationConfig(json_schema={}); print('pydantic' in sys.modules)"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "False"
