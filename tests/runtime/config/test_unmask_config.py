"""Settings of unmasking, as people write them."""

from __future__ import annotations

import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, UnmaskConfig


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("confidence", UnmaskConfig()),
        ("confidence:steps=32,block=16", UnmaskConfig(steps=32, block=16)),
        (" confidence : refresh = 4 ", UnmaskConfig(refresh=4)),
        ("localleap:anchor=0.8,radius=2", UnmaskConfig(rule="localleap", anchor=0.8, radius=2)),
    ],
)
def test_settings_are_read_back(text: str, expected: UnmaskConfig) -> None:
    setting = UnmaskConfig.parse(text)
    assert setting == expected
    assert UnmaskConfig.parse(str(setting)) == setting
    assert UnmaskConfig.from_dict(setting.to_dict()) == setting
    request = GenerationConfig.from_dict({"unmask": setting.to_dict()})
    assert request.unmask == setting


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prophet", "unmask rule is 'prophet', expected one of confidence, localleap$"),
        ("confidence:anchor=1", "the unmask setting .* holds 'anchor=1', expected each of steps"),
        ("localleap:steps=4", "the unmask setting .* holds 'steps=4'"),
        ("confidence:steps", "the unmask setting .* holds 'steps'"),
        ("confidence:steps=1,steps=2", "the unmask setting .* holds 'steps=2'"),
        ("confidence:steps=0", "unmask steps is 0, expected a whole number of at least 1"),
        ("confidence:block=x", "unmask block is 'x', expected a whole number"),
        ("localleap:anchor=1.5", "unmask anchor is 1.5, expected a number from 0 to 1"),
        ("localleap:relaxed=nan", "unmask relaxed is nan"),
    ],
)
def test_settings_that_are_none(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        UnmaskConfig.parse(text)


def test_a_request_wants_a_config() -> None:
    with pytest.raises(ConfigError, match="unmask is 'confidence', expected an UnmaskConfig"):
        GenerationConfig(unmask="confidence")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "is_plain"),
    [
        (UnmaskConfig(), True),
        (UnmaskConfig(block=4), True),
        (UnmaskConfig(steps=4), False),
        (UnmaskConfig(refresh=2), False),
        (UnmaskConfig(rule="localleap"), False),
    ],
    ids=str,
)
def test_which_are_plain(setting: UnmaskConfig, is_plain: bool) -> None:
    assert setting.is_plain is is_plain
