"""What a bundle was tuned to: which threshold `auto` means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import TUNED_KEY
from edgedec.runtime.config.switching import SwitchConfig

TUNED_FIELDS = ("threshold", "window", "dwell", "hysteresis", "reset_window")


def resolve(setting: SwitchConfig, tuned: Any, draft: str) -> SwitchConfig:
    """Returns ``setting``, with what the bundle was tuned to where it says auto.

    Args:
        tuned: What the manifest holds under `TUNED_KEY`; None where it has no such key.
        draft: Fingerprint of the draft model.

    Raises:
        ConfigError: The bundle was not tuned for this policy, or not with this draft model.
    """
    if not setting.is_auto:
        return setting
    hint = "run `edgedec tune` on it, or give a threshold"
    if tuned is None:
        raise ConfigError(f"the threshold is auto and the bundle was never tuned: {hint}")
    policies = _mapping(tuned, "policies")
    if setting.policy not in policies:
        raise ConfigError(
            f"the bundle was tuned for {', '.join(policies)}, not {setting.policy}: {hint}"
        )
    if tuned.get("draft") != draft:
        raise ConfigError(f"the bundle was tuned with another draft model: {hint}")
    config = SwitchConfig.from_dict(_mapping(policies, setting.policy))
    if config.is_auto:
        raise BundleError(f"manifest.defaults.{TUNED_KEY} states no threshold: {hint}")
    return dataclasses.replace(setting, **{name: getattr(config, name) for name in TUNED_FIELDS})


def _mapping(fields: Any, key: str) -> Mapping[str, Any]:
    value = fields.get(key) if isinstance(fields, Mapping) else None
    if not isinstance(value, Mapping):
        raise BundleError(
            f"manifest.defaults.{TUNED_KEY} has no {key}: run `edgedec tune` on the bundle again"
        )
    return value
