"""Any device of OpenVINO: Intel's CPUs, GPUs and NPUs; weights of 4 and 8 bits.

The same bundle runs on each of them; ``--device`` chooses one when it is loaded.
"""

from edgedec.models.quant import EVEN_FORMATS
from edgedec.targets.device_target import DeviceTarget, Place
from edgedec.targets.graph_kind import GraphKind

GRAPH = GraphKind(
    extra="openvino",
    imports=("openvino",),
    first_import="openvino",
    weights_file="weights.bin",
)

DEVICE = DeviceTarget(
    name="openvino",
    summary="for OpenVINO's CPU, GPU and NPU plugins (extra openvino)",
    compiler="openvino",
    weight_formats=EVEN_FORMATS,
    kv_formats=("float16", "float32"),
    places=(
        Place("CPU", "CPU"),
        Place("GPU", "GPU", "an Intel GPU and its OpenCL driver: apt install intel-opencl-icd"),
        Place(
            "NPU",
            "NPU",
            "an Intel NPU and its driver with the compiler: "
            "https://github.com/intel/linux-npu-driver/releases",
        ),
    ),
    place_option="device",
)
