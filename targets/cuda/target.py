"""NVIDIA GPUs, through kernels that TVM makes: weights of 4 and 8 bits, all of a pass on the GPU.

Bundles are for one architecture and those that its code also runs on; any machine makes them.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.profile import DeviceTarget

DEVICE = DeviceTarget(
    name="cuda",
    summary="kernels compiled by TVM for NVIDIA GPUs, 4- and 8-bit weights",
    compiler="cuda",
    weight_formats=tuple(FORMATS),
    kv_formats=("float16",),
    providers=(),
    usual_context=4096,
)
