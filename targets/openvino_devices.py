"""Devices of OpenVINO, as data: what runs a graph, and what brings its driver."""

from __future__ import annotations

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown

OPENVINO_DEVICES = {
    "CPU": "pip install 'edgedec[openvino]'",
    "GPU": "an Intel GPU and its OpenCL driver: apt install intel-opencl-icd",
    "NPU": "an Intel NPU and its driver with the compiler: "
    "https://github.com/intel/linux-npu-driver/releases",
}
"""Name, as OpenVINO and users write it -> what brings it. The first is for who names none."""


def check_openvino_device(name: str, option: str = "device") -> None:
    """Raises a ConfigError, about ``option``, unless there is a kind of device called ``name``."""
    if name not in OPENVINO_DEVICES:
        raise ConfigError(
            f"{option} is {shown(name)}, expected one of {', '.join(OPENVINO_DEVICES)}"
        )
