"""What a call may set by name is every field of a request, and nothing else."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from edgedec import EdgedecError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.settings import Settings


def test_settings_are_the_fields() -> None:
    fields = (*dataclasses.fields(GenerationConfig), *dataclasses.fields(SamplingConfig))
    assert set(Settings.__annotations__) == {field.name for field in fields}


@pytest.mark.parametrize("given", [{"temperature": 0}, {"top_p": 0.9}, {"top_k": 5}])
def test_sampling_in_the_wrong_place_is_told_the_right_one(given: dict[str, Any]) -> None:
    with pytest.raises(EdgedecError) as refused:
        GenerationConfig(**given)
    remedy = str(refused.value).split("write ")[1].split(", or generate")[0]
    names = {"GenerationConfig": GenerationConfig, "SamplingConfig": SamplingConfig}
    written = eval(remedy, names)  # what the message says is a program
    assert written == GenerationConfig(sampling=SamplingConfig(**given))


def test_requests_are_copied() -> None:
    config = GenerationConfig(max_new_tokens=3, sampling=SamplingConfig(temperature=0.5))
    assert copy.deepcopy(config) == pickle.loads(pickle.dumps(config)) == config
    assert dataclasses.replace(config, seed=1).sampling == config.sampling
