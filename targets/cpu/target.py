"""Any CPU, through edgedec's own kernels: the fused graph with packed weights.

The packed layout does not depend on the instruction set, so one bundle serves every CPU; the
kernels choose the best variant of the machine they wake up on.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.profile import DeviceTarget

DEVICE = DeviceTarget(
    name="cpu",
    summary="edgedec's kernels on any CPU; weights packed, mapped at load",
    compiler="fused",
    other_compilers=("tvm",),
    weight_formats=tuple(FORMATS),
    kv_formats=("float16", "int8"),
)
