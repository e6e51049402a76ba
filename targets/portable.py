"""Any ONNX Runtime provider: standard operators only, float32 weights."""

from edgedec.targets.profile import DeviceTarget

TARGET = DeviceTarget(
    name="portable",
    summary="standard ONNX operators with float32 weights; large, runs wherever ONNX does",
    graph_kind="portable",
    weight_formats=("f32",),
    panel_rows=0,
    page_bytes=4096,
)
