"""Any ONNX Runtime provider: standard operators only, float32 weights."""

from edgedec.targets.profile import DeviceTarget

DEVICE = DeviceTarget(
    name="portable",
    summary="standard ONNX operators with float32 weights; large, runs wherever ONNX does",
    compiler="portable",
    weight_formats=("f32",),
    kv_formats=("float32",),
)
