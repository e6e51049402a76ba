"""Architectures of NVIDIA's GPUs, as data: what bundles of the target cuda are made for."""

from __future__ import annotations

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown

ARCHS = {
    "sm_80": "A100",
    "sm_86": "RTX 30, A10, A40",
    "sm_87": "Jetson Orin",
    "sm_89": "RTX 40, L4, L40",
    "sm_90": "H100, H200",
}
"""Architectures that bundles are made for -> what has them."""


def check_arch(name: str) -> None:
    """Raises a ConfigError unless bundles are made for the architecture ``name``."""
    if name not in ARCHS:
        known = ", ".join(f"{arch} ({gpus})" for arch, gpus in ARCHS.items())
        raise ConfigError(f"architecture is {shown(name)}, expected one of {known}")
