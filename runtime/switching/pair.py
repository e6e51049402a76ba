"""Whether two models can take turns, and what a bundle was tuned to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edgedec.models.blocks import weight_shapes
from edgedec.models.config import ModelConfig
from edgedec.models.errors import BundleError, ConfigError
from edgedec.runtime.switching.config import SwitchConfig

TUNED_KEY = "switch"
"""Where `manifest.defaults` holds what `edgedec tune` found."""

TUNED_FIELDS = ("threshold", "window", "dwell", "hysteresis", "reset_window")


@dataclass(frozen=True)
class Pair:
    """A large and a small model.

    tokenizers: SHA-256 of both, the large model's first. large, small: their hyper-parameters.
    fingerprint: of the small model. tuned: what the large model's manifest says of switching.
    """

    tokenizers: tuple[str, str]
    large: ModelConfig
    small: ModelConfig
    fingerprint: str
    tuned: Any = None

    @property
    def size_ratio(self) -> float:
        """Parameters of the small model per parameter of the large one."""
        return n_parameters(self.small) / n_parameters(self.large)

    def check(self) -> None:
        """Raises a ConfigError unless the models can take turns."""
        large, small = self.tokenizers
        if large != small:
            raise ConfigError(
                f"the models have different tokenizers (SHA-256 {large[:16]} and {small[:16]}), "
                "and only one text of tokens can be written: name a bundle of the same tokenizer "
                "with --draft"
            )
        if self.small.trimmed_head_size:
            raise ConfigError(
                f"the small model's LM head knows {self.small.trimmed_head_size} of "
                f"{self.small.vocab_size} tokens, so it can draft but not write: export with "
                "--draft-vocabulary all, or name another bundle with --draft"
            )
        if self.small.n_logits > self.large.n_logits:
            raise ConfigError(
                f"the small model has {self.small.n_logits} logits, the large one "
                f"{self.large.n_logits}, expected no more than those: they are of no one family"
            )

    def resolve(self, setting: SwitchConfig) -> SwitchConfig:
        """Returns ``setting``, with what the bundle was tuned to where it says auto.

        Raises:
            ConfigError: The bundle was not tuned for this policy and this small model.
        """
        if not setting.is_auto:
            return setting
        hint = "run `edgedec tune` on it, or give a threshold"
        if self.tuned is None:
            raise ConfigError(f"the threshold is auto and the bundle was never tuned: {hint}")
        policies = _mapping(self.tuned, "policies")
        if self.tuned.get("small") != self.fingerprint:
            raise ConfigError(f"the bundle was tuned with another small model: {hint}")
        if setting.policy not in policies:
            raise ConfigError(
                f"the bundle was tuned for {', '.join(policies)}, not {setting.policy}: {hint}"
            )
        found = SwitchConfig.from_dict(_mapping(policies, setting.policy))
        if found.is_auto:
            raise BundleError(f"manifest.defaults.{TUNED_KEY} states no threshold: {hint}")
        fields = {name: getattr(found, name) for name in TUNED_FIELDS}
        return dataclasses.replace(setting, **fields)


def checked(pair: Pair | None) -> Pair:
    """Returns ``pair`` if its models can take turns.

    Raises:
        ConfigError: There is no second model, or they cannot take turns.
    """
    if pair is None:
        raise ConfigError(
            "switching needs a second, smaller model: export the bundle with --draft and "
            "--draft-vocabulary all, or name another bundle with --draft"
        )
    pair.check()
    return pair


def n_parameters(config: ModelConfig) -> int:
    """Returns how many weights a model has."""
    return sum(math.prod(shape) for shape in weight_shapes(config).values())


def _mapping(fields: Any, key: str) -> Mapping[str, Any]:
    found = fields.get(key) if isinstance(fields, Mapping) else None
    if not isinstance(found, Mapping):
        raise BundleError(
            f"manifest.defaults.{TUNED_KEY} has no {key}: run `edgedec tune` on the bundle again"
        )
    return found
