"""How matrices are packed, where a file beside config.json states it.

Sources: AutoGPTQ ``auto_gptq/quantization/config.py`` (MIT), AutoAWQ ``awq/models/_config.py``
(MIT), NVIDIA TensorRT-Model-Optimizer ``modelopt/torch/export`` (Apache-2.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgedec.export.checkpoints.json_files import read_fields
from edgedec.models.errors import CheckpointError
from edgedec.models.fields import Fields

_METHODS = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
    "hf_quant_config.json": "modelopt",
}
"""Files -> the method whose settings they hold."""
_USUAL_KEYS = {"w_bit": "bits", "q_group_size": "group_size"}


def with_packing(folder: Path, fields: Fields) -> Fields:
    """Returns ``fields`` with a ``quantization_config`` that is in a file of its own.

    Raises:
        CheckpointError: The file is broken.
    """
    if fields.get("quantization_config") is not None:
        return fields
    for name, method in _METHODS.items():
        in_file: Mapping[str, Any] = read_fields(folder, name, is_optional=True).values
        if method == "modelopt" and isinstance(inner := in_file.get("quantization"), Mapping):
            in_file = inner
        if in_file:
            settings = {_USUAL_KEYS.get(key, key): value for key, value in in_file.items()}
            packing = {"quant_method": method, **settings}
            values = {**fields.values, "quantization_config": packing}
            return Fields(values, fields.origin, CheckpointError)
    return fields
