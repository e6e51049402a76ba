"""Any ONNX Runtime provider, through ONNX Runtime's own operators: weights of 4 and 8 bits.

The same bundle runs on each of them; ``--provider`` chooses one when it is loaded.
"""

from edgedec.models.quant import EVEN_FORMATS
from edgedec.targets.device_target import DeviceTarget, Place
from edgedec.targets.graph_kind import GraphKind

_INSTEAD = "pip uninstall -y onnxruntime && pip install"

GRAPH = GraphKind()

DEVICE = DeviceTarget(
    name="ort",
    summary="for any provider of ONNX Runtime",
    compiler="ort",
    weight_formats=EVEN_FORMATS,
    kv_formats=("float32", "float16"),
    places=(
        Place("cpu", "CPUExecutionProvider", "pip install onnxruntime"),
        Place("cuda", "CUDAExecutionProvider", f"{_INSTEAD} onnxruntime-gpu", "cuda"),
        Place(
            "tensorrt",
            "TensorrtExecutionProvider",
            f"{_INSTEAD} onnxruntime-gpu tensorrt",
            "cuda",
        ),
        Place("dml", "DmlExecutionProvider", f"{_INSTEAD} onnxruntime-directml", "dml"),
        Place("webgpu", "WebGpuExecutionProvider", f"{_INSTEAD} onnxruntime-webgpu", "webgpu"),
    ),
    place_option="provider",
)
