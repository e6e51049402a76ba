"""Qualcomm's NPUs: 16-bit activations, weights of 4 and 8 bits, fixed sizes, compiled here.

A bundle is for one system on a chip, which ``--soc`` names.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.device_target import DeviceTarget
from edgedec.targets.graph_kind import GraphKind
from edgedec.targets.qnn.socs import SOCS

GRAPH = GraphKind(extra="qnn", imports=("onnxruntime_qnn",), measures_activations=True)

DEVICE = DeviceTarget(
    name="qnn",
    summary="for a Qualcomm NPU (extra qnn, --soc)",
    compiler="qnn",
    weight_formats=tuple(FORMATS),
    kv_formats=("uint16",),
    triple="aarch64-linux-gnu",
    usual_context=1024,
    chips={soc.name: soc.sold_as for soc in SOCS.values()},
    chip_option="soc",
    needs_chip=True,
)
