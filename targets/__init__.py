"""Devices, as data: one module per `DeviceTarget`, found by its name."""

from __future__ import annotations

import importlib
import pkgutil

from edgedec.models.errors import ConfigError
from edgedec.targets.profile import DeviceTarget

__all__ = ["DeviceTarget", "device_target", "device_target_names"]


_OTHERS = ("openvino_devices", "profile", "providers", "qualcomm_socs", "sm_archs", "triples")
"""Modules of this folder that are no target."""


def device_target_names() -> tuple[str, ...]:
    """Returns the names `device_target` knows, sorted."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted(name for name in names if name not in _OTHERS))


def device_target(name: str) -> DeviceTarget:
    """Returns the device target called ``name``; an unknown name is a ConfigError."""
    if name not in device_target_names():
        known = ", ".join(device_target_names())
        raise ConfigError(f"unknown device target {name!r}; known: {known}")
    found: DeviceTarget = importlib.import_module(f"edgedec.targets.{name}").DEVICE
    return found
