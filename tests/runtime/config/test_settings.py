"""What a call may set by name is every field of a request, and nothing else."""

from __future__ import annotations

import dataclasses

from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.settings import Settings


def test_settings_are_the_fields() -> None:
    fields = (*dataclasses.fields(GenerationConfig), *dataclasses.fields(SamplingConfig))
    assert set(Settings.__annotations__) == {field.name for field in fields}
