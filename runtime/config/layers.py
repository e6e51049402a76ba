"""What a request may ask to have left out of the model, validated before any model runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.runtime.config.checks import check_count, check_number, refuse_unknown
from edgedec.runtime.config.setting_texts import number_of, split_setting, written

UNIFIED, SKIPDECODE, FFN = LAYER_POLICIES = ("unified", "skipdecode", "ffn")

_OF_POLICY = {
    UNIFIED: ("keep",),
    SKIPDECODE: ("keep", "over"),
    FFN: ("cosine", "warm_up", "every"),
}


@dataclass(frozen=True, kw_only=True)
class LayersConfig:
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

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the setting stated by ``fields``; unknown keys are a ConfigError."""
        refuse_unknown(cls, fields)
        return cls(**fields)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Returns the setting written as ``skipdecode:keep=0.75,over=256``.

        Raises:
            ConfigError: It is not written so, or its policy has no such value.
        """
        policy, values = split_setting(text, _OF_POLICY, "layers", "unified:keep=0.75")
        numbers = {
            name: number_of(value, name not in ("keep", "cosine")) for name, value in values.items()
        }
        return cls.from_dict({"policy": policy, **numbers})

    def __str__(self) -> str:
        """The text `parse` reads back: what differs from the defaults."""
        return written(self.policy, _OF_POLICY[self.policy], self, type(self)())

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready fields that `from_dict` reads back."""
        return dataclasses.asdict(self)
