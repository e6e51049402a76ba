"""Any ONNX Runtime provider, through ONNX Runtime's own operators: weights of 4 and 8 bits.

The same bundle runs on each of them; ``--provider`` chooses one when it is loaded.
"""

from edgedec.models.quant import FORMATS
from edgedec.targets.profile import DeviceTarget
from edgedec.targets.providers import PROVIDERS

DEVICE = DeviceTarget(
    name="ort",
    summary="ONNX Runtime's own operators with 4- and 8-bit weights, on CPU, GPU or web",
    compiler="ort",
    weight_formats=tuple(FORMATS),
    kv_formats=("float32", "float16"),
    providers=tuple(provider.ort_name for provider in PROVIDERS.values()),
)
