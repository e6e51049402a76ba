"""The compute of edgedec: packed matrices and the operators, on the best instruction set.

Applications reach the operators through ONNX Runtime (`library_path`); the functions here call
them directly, for packing at export and for tests. Wrong shapes are a ValueError; a missing
library, or an ``EDGEDEC_ISA`` that cannot be used, a RuntimeError.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from edgedec.kernels.cpu import (
        PANEL,
        PackedMatrix,
        active_isa,
        attention,
        available_isas,
        kv_block_nbytes,
        pack,
        packed_nbytes,
    )
    from edgedec.kernels.embed_op import embed, unpack_rows
    from edgedec.kernels.experts_op import PackedExperts, experts
    from edgedec.kernels.head_norm_op import head_norm
    from edgedec.kernels.library import Scoring, has_library, lend_library, library_path
    from edgedec.kernels.limits import multiply_rate, read_rate
    from edgedec.kernels.linear_op import linear
    from edgedec.kernels.row_stats_op import row_stats
    from edgedec.kernels.short_conv_op import short_conv
    from edgedec.kernels.state_space_op import (
        StateSpaceSizes,
        StateSpaceWeights,
        state_floats,
        state_space,
    )

__all__ = [
    "PANEL",
    "PackedExperts",
    "PackedMatrix",
    "Scoring",
    "StateSpaceSizes",
    "StateSpaceWeights",
    "active_isa",
    "attention",
    "available_isas",
    "embed",
    "experts",
    "has_library",
    "head_norm",
    "kv_block_nbytes",
    "lend_library",
    "library_path",
    "linear",
    "multiply_rate",
    "pack",
    "packed_nbytes",
    "read_rate",
    "row_stats",
    "short_conv",
    "state_floats",
    "state_space",
    "unpack_rows",
]

_MODULES = {
    name: module
    for module, names in {
        "cpu": "PANEL PackedMatrix active_isa attention available_isas kv_block_nbytes pack "
        "packed_nbytes",
        "embed_op": "embed unpack_rows",
        "experts_op": "PackedExperts experts",
        "head_norm_op": "head_norm",
        "library": "Scoring has_library lend_library library_path",
        "limits": "multiply_rate read_rate",
        "linear_op": "linear",
        "row_stats_op": "row_stats",
        "short_conv_op": "short_conv",
        "state_space_op": "StateSpaceSizes StateSpaceWeights state_floats state_space",
    }.items()
    for name in names.split()
}
"""Function -> module. Each is imported when first asked for: a run needs few of them."""


def __getattr__(name: str) -> typing.Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
