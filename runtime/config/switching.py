"""What a request may ask of switching, validated before any model runs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.setting_texts import SettingForm

EAD, MARGIN, BILD = POLICIES = ("ead", "margin", "bild")
TRUST, REPAIR, VERIFY = MODES = ("trust", "repair", "verify")
AUTO = "auto"

_FORM = SettingForm(called="switch", kind="policy", example="ead:threshold=1.5,window=5")
_LONGEST_RUN = 64  # judged in one pass, whose rows of logits are all in memory


@dataclass(frozen=True, kw_only=True)
class SwitchConfig:
    """When the target model takes over from the draft model, and what it does with what it missed.

    Doubt is taken from the raw logits over the whole vocabulary, before temperature.

    policy: ead and margin hand over while the rolling mean of the draft or target model's doubt is
        above the threshold: entropy in bits, or 1 - (p1 - p2) of the two likeliest tokens. bild
        asks the target model for a single token where the draft model's best is unlikely.
    threshold: of ead and margin; infinity is the draft model alone, below zero the target model.
        "auto" takes threshold, window, dwell, hysteresis and reset_window as the bundle was tuned.
    window: tokens the rolling mean is about.
    dwell: least tokens between two switches.
    hysteresis: the target model hands back at this part of the threshold.
    reset_window: forget the window at a switch.
    mode: trust keeps what the draft model said; repair takes back what the target model finds very
        unlikely; verify keeps only what the target model would have said itself. None takes repair
        for bild, as its paper does, and trust for the others.
    fallback: of bild, the probability below which the target model is asked.
    rollback: of repair, the -ln p above which a token is taken back. Units: nats.
    max_run: of repair and verify, most tokens of the draft model before they are judged; up
        to 64.
    """

    policy: str = EAD
    threshold: float | str = AUTO
    window: int = 5
    dwell: int = 5
    hysteresis: float = 1.0
    reset_window: bool = False
    mode: str | None = None
    fallback: float = 0.6
    rollback: float = 5.0
    max_run: int = 16

    def __post_init__(self) -> None:
        _check_choice("policy", self.policy, POLICIES)
        if self.mode is None:
            object.__setattr__(self, "mode", REPAIR if self.policy == BILD else TRUST)
        _check_choice("mode", self.mode, MODES)
        if self.threshold != AUTO:
            _check_number("threshold", self.threshold, -math.inf, 'a number or "auto"')
            if self.policy == BILD:
                raise ConfigError(
                    f"threshold is {shown(self.threshold)}, but bild has none: it takes fallback "
                    "and rollback"
                )
        for name in ("window", "dwell"):
            _check_count(name, getattr(self, name))
        _check_count("max_run", self.max_run, _LONGEST_RUN)
        _check_number("hysteresis", self.hysteresis, 0.0, "a number above 0, up to 1")
        if not 0 < self.hysteresis <= 1:
            raise ConfigError(f"hysteresis is {self.hysteresis}, expected above 0, up to 1")
        if not isinstance(self.reset_window, bool):
            raise ConfigError(f"reset_window is {shown(self.reset_window)}, expected true or false")
        _check_number("fallback", self.fallback, 0.0, "a probability; above 1 always falls back")
        _check_number("rollback", self.rollback, 0.0, "nats, at least 0")

    @property
    def is_lossless(self) -> bool:
        """The text is the target model's own."""
        return self.mode == VERIFY

    @property
    def is_auto(self) -> bool:
        """What the bundle was tuned to is needed."""
        return self.threshold == AUTO and self.policy != BILD

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the setting stated by ``fields``; unknown keys are a ConfigError.

        Numbers may be texts, such as "inf", which JSON has no number for.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(fields) - known):
            raise ConfigError(
                f"unknown switch key {unknown[0]!r}; known: {', '.join(sorted(known))}"
            )
        return cls(**{name: _read(name, value) for name, value in fields.items()})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the setting written as ``ead:threshold=1.5,window=5,mode=trust``."""
        return cls.from_dict(cls.split(text))

    @staticmethod
    def split(text: str) -> dict[str, str]:
        """Returns the fields of a setting written as for `parse`, for `from_dict`."""
        return _FORM.split(text)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back."""
        fields = dataclasses.asdict(self)
        return {
            name: str(value) if value in (math.inf, -math.inf) else value
            for name, value in fields.items()
        }

    def __str__(self) -> str:
        """The text `parse` reads back: what differs from the defaults."""
        defaults = type(self)(policy=self.policy)
        parts = [
            f"{f.name}={_written(value)}"
            for f in dataclasses.fields(self)
            if (value := getattr(self, f.name)) != getattr(defaults, f.name)
        ]
        return f"{self.policy}:{','.join(parts)}" if parts else self.policy


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _read(name: str, value: Any) -> Any:
    """Returns the value of a field that may have been written as text."""
    if not isinstance(value, str) or name in ("policy", "mode") or value == AUTO:
        return value
    if name == "reset_window":
        return {"true": True, "false": False}.get(value, value)
    is_count = name in ("window", "dwell", "max_run")
    try:
        return int(value) if is_count else float(value)
    except ValueError:
        return value  # the constructor says what was expected


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"switch {name} is {shown(value)}, expected one of {', '.join(choices)}")


def _check_number(name: str, value: Any, low: float, expected: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or math.isnan(value) or value < low:
        raise ConfigError(f"switch {name} is {shown(value)}, expected {expected}")


def _check_count(name: str, value: Any, most: int = 4096) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ConfigError(
            f"switch {name} is {shown(value)}, expected a whole number from 1 to {most}"
        )
