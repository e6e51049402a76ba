"""Any device of OpenVINO: Intel's CPUs, GPUs and NPUs; weights of 4 and 8 bits.

The same bundle runs on each of them; ``--device`` chooses one when it is loaded.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.openvino_devices import OPENVINO_DEVICES
from edgedec.targets.profile import DeviceTarget

DEVICE = DeviceTarget(
    name="openvino",
    summary="OpenVINO with 4- and 8-bit weights, on Intel's CPUs, GPUs and NPUs",
    compiler="openvino",
    weight_formats=tuple(FORMATS),
    kv_formats=("float16", "float32"),
    providers=OPENVINO_DEVICES,
)
