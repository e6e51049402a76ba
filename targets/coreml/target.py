"""Apple's devices, through Core ML: float16, weights in blocks of 4 and 8 bits, fixed sizes.

Packages are made anywhere, and run on macOS 15 and later.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.profile import DeviceTarget

DEVICE = DeviceTarget(
    name="coreml",
    summary="Core ML's operators in float16 with 4- and 8-bit weights; runs on macOS 15 only",
    compiler="coreml",
    weight_formats=tuple(FORMATS),
    kv_formats=("float16",),
    providers=(),
    usual_context=2048,
)
