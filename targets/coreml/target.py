"""Apple's devices, through Core ML: float16, weights in blocks of 4 and 8 bits, fixed sizes.

Packages are made anywhere, and run on macOS 15 and later.
"""

from edgedec.models.quant import EVEN_FORMATS
from edgedec.targets.device_target import DeviceTarget
from edgedec.targets.graph_kind import GraphKind, System

GRAPH = GraphKind(
    extra="coreml",
    imports=("coremltools",),
    weights_file="weights/weight.bin",
    system=System("Darwin", "macOS 15 or later"),
)

DEVICE = DeviceTarget(
    name="coreml",
    summary="for macOS (extra coreml)",
    compiler="coreml",
    weight_formats=EVEN_FORMATS,
    kv_formats=("float16",),
    usual_context=2048,
)
