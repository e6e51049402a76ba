"""Any CPU, through edgedec's own kernels: the fused graph with packed weights.

The packed layout does not depend on the instruction set, so one bundle serves every CPU; the
kernels choose the best variant of the machine they wake up on.
"""

from edgedec.models.kv_formats import kv_formats_of
from edgedec.models.quant import FORMATS
from edgedec.targets.device_target import DeviceTarget, Place
from edgedec.targets.graph_kind import GraphKind

GRAPH = GraphKind(brings_kernels=True)

DEVICE = DeviceTarget(
    name="cpu",
    summary="edgedec's kernels",
    compiler="fused",
    other_compilers=("tvm",),
    weight_formats=tuple(FORMATS),
    kv_formats=kv_formats_of("panels"),
    places=(Place("cpu", "CPUExecutionProvider", "pip install onnxruntime"),),
)
