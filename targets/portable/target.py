"""Any ONNX Runtime provider: standard operators only, float32 weights."""

from edgedec.targets.device_target import DeviceTarget, Place
from edgedec.targets.graph_kind import GraphKind

GRAPH = GraphKind()

DEVICE = DeviceTarget(
    name="portable",
    summary="plain ONNX with float32 weights",
    compiler="portable",
    weight_formats=("f32",),
    kv_formats=("float32",),
    places=(Place("cpu", "CPUExecutionProvider", "pip install onnxruntime"),),
)
