"""Programs that TVM compiles for the device target cpu, and that need no ONNX Runtime."""

from edgedec.targets.graph_kind import GraphKind

GRAPH = GraphKind(
    extra="tvm",
    imports=("tvm", "tvm_ffi"),
    packages={"tvm_ffi": "apache-tvm-ffi"},
    first_import="edgedec.kernels.tvm_program",
    libraries=(".so",),
    weights_file="weights.bin",
)
