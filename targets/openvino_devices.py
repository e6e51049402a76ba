"""Devices of OpenVINO, as data: what runs a graph, and what brings its driver."""

from __future__ import annotations

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown
from edgedec.models.installation import install_command

_DRIVERS = {
    "GPU": "an Intel GPU and its OpenCL driver: apt install intel-opencl-icd",
    "NPU": "an Intel NPU and its driver with the compiler: "
    "https://github.com/intel/linux-npu-driver/releases",
}

OPENVINO_DEVICES = ("CPU", *_DRIVERS)
"""Names as OpenVINO and users write them. The first is for users who name none."""


def openvino_requirement(device: str) -> str:
    """Returns what ``device`` needs on this machine, for messages."""
    return _DRIVERS.get(device) or install_command("openvino")


def check_openvino_device(name: str, option: str = "device") -> None:
    """Raises a ConfigError, about ``option``, unless there is a kind of device called ``name``."""
    if name not in OPENVINO_DEVICES:
        raise ConfigError(
            f"{option} is {shown(name)}, expected one of {', '.join(OPENVINO_DEVICES)}"
        )
