"""Programs of MIL evaluated in NumPy: the operators that `emit` uses, and no others.

Core ML runs on Apple's systems alone. Here each operator computes in float32 and rounds to the type
that the specification states; a device may sum in another order and keep more between operators.

Source: the operators' definitions in coremltools (BSD-3-Clause), ``mil/ops/defs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from coremltools.converters.mil.mil import Function, Operation, Var, types

from edgedec.targets.coreml.export_package import read_package

Array = npt.NDArray[Any]
State = dict[str, Array]
"""By the names of the functions' state."""


class Interpreter:
    """The package in ``folder``, whose functions take and return arrays by their names."""

    def __init__(self, folder: Path) -> None:
        self._functions: Mapping[str, Function] = read_package(folder).functions
        self._dying = {name: _dying(function) for name, function in self._functions.items()}

    def new_state(self) -> State:
        """Returns keys and values of no token."""
        function = next(iter(self._functions.values()))
        wrapped = {
            name: var.sym_type.wrapped_type()
            for name, var in function.inputs.items()
            if types.is_state(var.sym_type)
        }
        return {name: np.zeros(of.get_shape(), np.float16) for name, of in wrapped.items()}

    def predict(self, name: str, inputs: Mapping[str, Array], state: State) -> dict[str, Array]:
        """Returns the outputs of the function ``name``; writes into ``state``."""
        function, values = self._functions[name], dict(inputs)
        for key, array in inputs.items():
            assert array.shape == function.inputs[key].shape, f"{key}: {array.shape}"
        for op, dying in zip(function.operations, self._dying[name], strict=True):
            _run(op, values, state)
            for done in dying:
                del values[done]
        return {var.name: values[var.name] for var in function.outputs}


def _dying(function: Function) -> list[list[str]]:
    """Returns for each operator the values that no later one reads."""
    last = {var.name: i for i, op in enumerate(function.operations) for var in _arguments(op)}
    made = {out.name for op in function.operations for out in op.outputs or ()}
    dying: list[list[str]] = [[] for _ in function.operations]
    for name, i in last.items():
        if name in made - {out.name for out in function.outputs}:
            dying[i].append(name)
    return dying


def _arguments(op: Operation) -> list[Var]:
    arguments = [part if isinstance(part, list | tuple) else [part] for part in op.inputs.values()]
    return [var for part in arguments for var in part if var is not None]


def _run(op: Operation, values: dict[str, Array], state: State) -> None:
    """Puts what ``op`` returns into ``values``."""

    def value(var: Any) -> Any:
        if isinstance(var, list | tuple):
            return [value(part) for part in var]
        value_ = values.get(var.name, var.val)
        return value_.astype(np.float32) if getattr(value_, "dtype", None) == np.float16 else value_

    if op.op_type == "const":
        values[op.outputs[0].name] = op.outputs[0].val
        return
    if op.op_type in ("read_state", "coreml_update_state"):
        name = (op.inputs.get("state") or op.inputs["input"]).name
        if op.op_type == "coreml_update_state":
            state[name] = values[op.inputs["value"].name]
        values[op.outputs[0].name] = state[name]
        return
    arguments = {key: value(var) for key, var in op.inputs.items() if var is not None}
    results = _OPERATORS[op.op_type](**arguments)
    for out, result in zip(
        op.outputs, results if op.op_type == "split" else [results], strict=True
    ):
        assert np.shape(result) == tuple(out.shape), f"{op.op_type} {out.name}: {np.shape(result)}"
        values[out.name] = np.asarray(result, types.nptype_from_builtin(out.dtype))


def _blockwise(data: Array, scale: Array) -> Array:
    blocks = data.reshape(*scale.shape, -1).astype(np.float32)
    dequantised: Array = (blocks * scale[..., None]).reshape(data.shape)
    return dequantised


def _slices(begin: Array, end: Array, **masks: Array) -> tuple[slice, ...]:
    assert not any(np.any(mask) for mask in masks.values()), "masks are not used"
    return tuple(slice(int(a), int(b)) for a, b in zip(begin, end, strict=True))


def _slice_update(x: Array, update: Array, begin: Array, end: Array, **masks: Array) -> Array:
    written = x.copy()
    written[_slices(begin, end, **masks)] = update
    return written


def _softmax(x: Array, axis: int) -> Array:
    weights = np.exp(x - x.max(axis, keepdims=True))
    shares: Array = weights / weights.sum(axis, keepdims=True)
    return shares


def _gelu(x: Array, mode: str) -> Array:
    assert mode == "TANH_APPROXIMATION"
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x**3)
    activated: Array = np.float32(0.5) * x * (1 + np.tanh(inner))
    return activated


def _cumsum(x: Array, axis: int, exclusive: bool, reverse: bool) -> Array:
    assert reverse
    assert not exclusive
    return np.flip(np.cumsum(np.flip(x, axis), axis), axis)


def _matmul(x: Array, y: Array, transpose_x: bool, transpose_y: bool) -> Array:
    assert not transpose_x
    product: Array = x @ (y.swapaxes(-1, -2) if transpose_y else y)
    return product


def _reduce(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, axes, keep_dims: function(x, tuple(axes), keepdims=bool(keep_dims))


_OPERATORS: Mapping[str, Callable[..., Any]] = {
    "abs": lambda x: np.abs(x),
    "add": lambda x, y: x + y,
    "cast": lambda x, dtype: x.astype(dtype),
    "concat": lambda values, axis, interleave: np.concatenate(values, axis),
    "constexpr_blockwise_shift_scale": _blockwise,
    "cumsum": _cumsum,
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(axes)),
    "gather": lambda x, indices, axis, batch_dims, validate_indices: np.take(x, indices, axis),
    "gelu": _gelu,
    "greater": lambda x, y: x > y,
    "linear": lambda x, weight, bias=0: x @ weight.T + bias,
    "matmul": _matmul,
    "maximum": lambda x, y: np.maximum(x, y),
    "mul": lambda x, y: x * y,
    "real_div": lambda x, y: x / y,
    "reduce_max": _reduce(np.max),
    "reduce_mean": _reduce(np.mean),
    "reduce_sum": _reduce(np.sum),
    "reshape": lambda x, shape: x.reshape(shape),
    "select": lambda cond, a, b: np.where(cond, a, b),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "slice_by_index": lambda x, begin, end, **masks: x[_slices(begin, end, **masks)],
    "slice_update": _slice_update,
    "softmax": _softmax,
    "split": lambda x, num_splits, axis: np.split(x, num_splits, axis),
    "sqrt": lambda x: np.sqrt(x),
    "squeeze": lambda x, axes: np.squeeze(x, tuple(axes)),
    "sub": lambda x, y: x - y,
    "tanh": lambda x: np.tanh(x),
    "transpose": lambda x, perm: x.transpose(perm),
}
"""By name: what each computes of float32 arrays, and of integers."""
