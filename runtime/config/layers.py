"""What a request may ask to have left out of the model, validated before any model runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import check_count, check_number
from edgedec.runtime.config.setting_texts import SettingForm, WrittenSetting

UNIFIED, SKIPDECODE, FFN = LAYER_POLICIES = ("unified", "skipdecode", "ffn")

_FORM = SettingForm(
    called="layers",
    kind="policy",
    example="unified:keep=0.75",
    names={
        UNIFIED: ("keep",),
        SKIPDECODE: ("keep", "over"),
        FFN: ("cosine", "warm_up", "every"),
    },
    whole=("over", "warm_up", "every"),
)


@dataclass(frozen=True, kw_only=True)
class LayersConfig(WrittenSetting):
    """Which layers write the output, in place of all. The text is then approximate.

    The prompt is read by the whole model.

    policy: unified leaves out whole layers evenly, the same for every token. skipdecode leaves out
        more and more of the middle as the output grows. ffn leaves out MLPs of layers that lately
        changed the hidden states little.
    keep: of unified the part of the layers that run; of skipdecode that of the last token.
    over: of skipdecode, new tokens until only ``keep`` run; as many as asked for when None.
    cosine: of ffn, between a layer's hidden states before and behind; above it the MLP is left out.
    warm_up: of ffn, new tokens before anything is left out.
    every: of ffn, of so many tokens one is written by the whole model, and looked at.
    """

    FORM: ClassVar[SettingForm] = _FORM

    policy: str = UNIFIED
    keep: float = 0.9
    over: int | None = None
    cosine: float = 0.98
    warm_up: int = 25
    every: int = 16

    def __post_init__(self) -> None:
        if self.policy not in LAYER_POLICIES:
            raise ConfigError(
                f"layers policy is {shown(self.policy)}, expected one of "
                f"{', '.join(LAYER_POLICIES)}"
            )
        check_number("layers keep", self.keep, 0.0, 1.0, "1 is all layers")
        if self.over is not None:
            check_count("layers over", self.over, 1, "a number of tokens")
        check_number("layers cosine", self.cosine, -1.0, 1.0, "1 leaves nothing out")
        check_count("layers warm_up", self.warm_up, 0, "a number of tokens")
        check_count("layers every", self.every, 1, "1 leaves nothing out")
