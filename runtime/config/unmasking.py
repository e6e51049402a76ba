"""How a model that fills masks in may be asked to decide its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import check_count, check_number
from edgedec.runtime.config.setting_texts import SettingForm, WrittenSetting

CONFIDENCE, LOCALLEAP = UNMASK_RULES = ("confidence", "localleap")

_FORM = SettingForm(
    called="unmask",
    kind="rule",
    example="confidence:steps=32,block=16",
    names={
        CONFIDENCE: ("steps", "block", "refresh"),
        LOCALLEAP: ("block", "refresh", "anchor", "relaxed", "radius"),
    },
    whole=("steps", "block", "refresh", "radius"),
)


@dataclass(frozen=True, kw_only=True)
class UnmaskConfig(WrittenSetting):
    """Which masked tokens a pass decides. By default one, the one the model is surest of.

    rule: confidence decides those of the highest probability. localleap also those of high
        probability, and likely ones near them.
    steps: passes for the whole output; one for each token when None.
    block: tokens that are decided before any token behind them; all when None.
    refresh: 0: every pass computes the whole text. Otherwise keys and values of decided tokens are
        kept, and all are computed anew every so many passes (dKV-Cache).
    anchor, relaxed, radius: of localleap: the probability of a token that is decided at once, and
        that of one so many places from it.
    """

    FORM: ClassVar[SettingForm] = _FORM

    rule: str = CONFIDENCE
    steps: int | None = None
    block: int | None = None
    refresh: int = 0
    anchor: float = 0.9
    relaxed: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        if self.rule not in UNMASK_RULES:
            raise ConfigError(
                f"unmask rule is {shown(self.rule)}, expected one of {', '.join(UNMASK_RULES)}"
            )
        for name in ("steps", "block"):
            if (value := getattr(self, name)) is not None:
                check_count(f"unmask {name}", value, 1, "leave it out for the default")
        check_count("unmask refresh", self.refresh, 0, "0 computes all in every pass")
        for name in ("anchor", "relaxed"):
            check_number(f"unmask {name}", getattr(self, name), 0.0, 1.0, "a probability")
        check_count("unmask radius", self.radius, 0, "a number of places")

    @property
    def is_plain(self) -> bool:
        """One pass over the whole text decides one token."""
        return self.rule == CONFIDENCE and self.steps is None and self.refresh == 0
