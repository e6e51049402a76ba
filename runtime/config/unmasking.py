"""How a model that fills masks in may be asked to decide its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import check_count, check_number
from edgedec.runtime.config.setting_texts import SettingForm, WrittenSetting

CONFIDENCE, LOCALLEAP, PROPHET, CCD = UNMASK_RULES = ("confidence", "localleap", "prophet", "ccd")

_FORM = SettingForm(
    called="unmask",
    kind="rule",
    example="confidence:steps=32,block=16",
    names={
        CONFIDENCE: ("steps", "block", "refresh"),
        LOCALLEAP: ("block", "refresh", "anchor", "relaxed", "radius"),
        PROPHET: ("steps", "block", "refresh", "early", "middle", "late"),
        CCD: ("steps", "block", "refresh", "history", "entropy"),
    },
    whole=("steps", "block", "refresh", "radius", "history"),
)


@dataclass(frozen=True, kw_only=True)
class UnmaskConfig(WrittenSetting):
    """Which masked tokens a pass decides. By default one, the one the model is surest of.

    rule: confidence decides those of the highest probability. localleap also those of high
        probability, and likely ones near them. prophet decides all at once when the likeliest
        tokens are far ahead of the second. ccd goes by the average of several passes.
    steps: passes for the whole output; one for each token when None.
    block: tokens that are decided before any token behind them; all when None.
    refresh: 0: every pass computes the whole text. Otherwise keys and values of decided tokens are
        kept, and all are computed anew every so many passes (dKV-Cache).
    anchor, relaxed, radius: of localleap: the probability of a token that is decided at once, and
        that of one so many places from it.
    early, middle, late: of prophet: the mean distance of the two best logits that suffices in the
        first, second and last third of the steps.
    history, entropy: of ccd: passes that are averaged. A token is decided at once if the entropy of
        the average is below this, in nats.
    """

    FORM: ClassVar[SettingForm] = _FORM

    rule: str = CONFIDENCE
    steps: int | None = None
    block: int | None = None
    refresh: int = 0
    anchor: float = 0.9
    relaxed: float = 0.75
    radius: int = 4
    early: float = 7.5
    middle: float = 5.0
    late: float = 2.5
    history: int = 3
    entropy: float = 0.1

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
        for name in ("early", "middle", "late"):
            check_number(f"unmask {name}", getattr(self, name), 0.0, 1e9, "a distance of logits")
        check_count("unmask history", self.history, 1, "a number of passes")
        check_number("unmask entropy", self.entropy, 0.0, 1e9, "nats")

    @property
    def is_plain(self) -> bool:
        """One pass over the whole text decides one token."""
        return self.rule == CONFIDENCE and self.steps is None and self.refresh == 0
