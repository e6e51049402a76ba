"""NVIDIA GPUs, through kernels that TVM makes: weights of 4 and 8 bits, all of a pass on the GPU.

Bundles are for one architecture and those that its code also runs on; any machine makes them.
"""

from edgedec.models.quant import EVEN_FORMATS
from edgedec.targets.device_target import DeviceTarget
from edgedec.targets.graph_kind import GraphKind

GRAPH = GraphKind(
    extra="tvm",
    imports=("tvm", "tvm_ffi"),
    packages={},
    libraries=(".so", ".fatbin"),
    weights_file="weights.bin",
)

DEVICE = DeviceTarget(
    name="cuda",
    summary="for GPUs of NVIDIA (extra tvm, --arch)",
    compiler="cuda",
    weight_formats=EVEN_FORMATS,
    kv_formats=("float16",),
    usual_context=4096,
    chips={  # the oldest first
        "sm_80": "A100",
        "sm_86": "RTX 30, A10, A40",
        "sm_87": "Jetson Orin",
        "sm_89": "RTX 40, L4, L40",
        "sm_90": "H100, H200",
    },
    chip_option="arch",
)
