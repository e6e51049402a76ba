"""Qualcomm's NPUs: 16-bit activations, weights of 4 and 8 bits, fixed sizes, compiled here.

A bundle is for one system on a chip, which ``--soc`` names.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.profile import DeviceTarget
from edgedec.targets.qualcomm_socs import SOCS

DEVICE = DeviceTarget(
    name="qnn",
    summary="16-bit activations with 4- and 8-bit weights, compiled for Qualcomm's NPUs",
    compiler="qnn",
    weight_formats=tuple(FORMATS),
    kv_formats=("uint16",),
    triple="aarch64-linux-gnu",
    providers=tuple(SOCS),
    usual_context=1024,
)
