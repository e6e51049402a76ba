"""Programs of kernels on NVIDIA's GPUs: weights, keys and values stay in the GPU's memory.

Needs the driver alone. A pass sends some numbers for each token, and reads back row statistics, or
rows of logits where somebody wants them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgedec.kernels.cuda_driver import (
    CudaDevice,
    CudaError,
    CudaKernelsError,
    GpuFacts,
    driver_version,
    find_gpus,
)
from edgedec.kernels.device_program import (
    KEYS,
    MAX_TREE,
    VALUES,
    WEIGHTS,
    DevicePass,
    DeviceProgram,
    OpenProgram,
    PassInputs,
    parts_of_pass,
)
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.graph import (
    LOGITS,
    ROW_STATS,
    WEIGHTS_BESIDE,
    hidden_port,
    stats_port,
)
from edgedec.runtime.backends.graph_checks import check_names
from edgedec.runtime.backends.model_facts import GraphToRun, ModelFacts
from edgedec.runtime.backends.trust import check_trusted
from edgedec.runtime.backends.whole_cache import WholeCache
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.row_stats import RowStats
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.sequences.state import KVRows
from edgedec.runtime.sequences.token_tree import TokenTree

KERNELS_NAME = "kernels.fatbin"

Array = npt.NDArray[Any]

_DTYPES = {"int64": np.int32, "float32": np.float32}
"""Element type of a row statistic -> what it has on the device."""


class CudaModel(ModelFacts):
    """A `Model` over a program on a GPU."""

    def __init__(self, graph: GraphToRun) -> None:
        super().__init__(graph)
        program = _read_program(graph.path)
        for each in program.passes:
            check_names(graph.path, "outputs", set(each.outputs), set(self.contract.outputs))
        self._opened: OpenProgram | None = _open_on_gpu(graph.path, program)
        self._lock = threading.RLock()

    @property
    def is_closed(self) -> bool:
        return self._opened is None

    @property
    def opened(self) -> OpenProgram:
        """The program; a SessionError where it was released."""
        self.check_open()
        assert self._opened is not None
        return self._opened

    def check_open(self) -> None:
        """Raises: SessionError: The program was released."""
        if self._opened is None:
            raise SessionError("the model is closed: load the bundle again")

    def new_state(self, context: int) -> CudaKVCache:
        """Returns an empty KV cache for all positions of the program.

        Raises:
            SessionError: The GPU has no memory for it.
        """
        return CudaKVCache(self)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keeps others away meanwhile, and makes a SessionError of what goes wrong on the GPU.

        That closes the model; memory that is not there is no reason to.
        """
        try:
            with self._lock:
                yield
        except MemoryError as error:
            raise SessionError(
                f"the GPU has too little memory ({error}): load with fewer texts at once, or "
                "export with a smaller --context"
            ) from None
        except CudaError as error:
            self.close()
            raise SessionError(f"the GPU failed ({error}): load the bundle again") from None

    def close(self) -> None:
        """Gives the GPU back."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
            self._opened = None


def open_model(graph: GraphToRun) -> CudaModel:
    """Returns the model of ``graph``.

    Raises:
        BundleError: It is not what is stated, or there is no GPU that it runs on.
    """
    return CudaModel(graph)


class CudaKVCache(WholeCache):
    """A `SequenceState` in the GPU's memory; committed token i has row i.

    Shapes: keys [n_layers, n_kv_heads, head_size, C], values [n_layers, n_kv_heads, C, head_size],
        float16.
    """

    _model: CudaModel

    def __init__(self, model: CudaModel) -> None:
        self._model = model
        with model.on_device():
            self._cache = model.opened.new_cache()
        self._inputs: dict[int, PassInputs] = {}
        config = model.config
        heads = (config.n_layers, config.n_kv_heads)
        n_numbers = model.opened.program.sizes[KEYS] // 2
        capacity = n_numbers // (config.n_layers * config.n_kv_heads * config.head_size)
        self._shapes = {
            KEYS: (*heads, config.head_size, capacity),
            VALUES: (*heads, capacity, config.head_size),
        }

    def run(self, pass_: Pass) -> Rows:
        """Returns the asked rows, in arrays of their own."""
        tree, n_known, n_past = pass_.tree, pass_.n_known, pass_.n_past
        if not tree.is_chain and len(tree) > MAX_TREE:
            raise SessionError(
                f"a tree of {len(tree)} tokens is more than the {MAX_TREE} of a pass on the GPU: "
                "draft fewer tokens"
            )
        logit_rows = [row - n_known for row in pass_.logit_rows]
        opened, collected = self._model.opened, _Results(pass_, self._model)
        with self._model.on_device():
            for kind, rows in parts_of_pass(opened.program.passes, len(tree) - n_known, logit_rows):
                results = [i for i, row in enumerate(logit_rows) if row in rows]
                places = [logit_rows[i] - rows.start for i in results]
                inputs = self._filled(kind, pass_, rows, n_past, places)
                self._cache.run(kind, inputs)
                collected.read(opened, kind, rows, results)
        return collected.rows()

    def commit(self, n_past: int, tree: TokenTree, path: Sequence[int]) -> None:
        """Moves the rows of ``path`` together behind the committed ones."""
        first = next((i for i, row in enumerate(path) if row != i), len(path))
        if first < len(path):
            places = [n_past + row for row in path[first:]]
            with self._model.on_device():
                self._cache.keep(n_past + first, places)

    def snapshot(self, start: int, stop: int) -> KVRows:
        keys, values = self._downloaded()
        return {
            KEYS: np.ascontiguousarray(keys[..., start:stop].swapaxes(-1, -2)),
            VALUES: values[:, :, start:stop].copy(),
        }

    def restore(self, start: int, stop: int, kv_rows: KVRows) -> None:
        keys, values = self._downloaded()
        keys[..., start:stop] = kv_rows[KEYS].swapaxes(-1, -2)
        values[:, :, start:stop] = kv_rows[VALUES]
        with self._model.on_device():
            self._cache.upload(KEYS, keys)
            self._cache.upload(VALUES, values)

    def close(self) -> None:
        """Gives the memory back."""
        if not self._model.is_closed:
            self._cache.close()

    def _downloaded(self) -> tuple[Array, Array]:
        self._model.check_open()
        with self._model.on_device():
            keys, values = (
                self._cache.download(name, np.empty(shape, np.float16))
                for name, shape in self._shapes.items()
            )
        return keys, values

    def _filled(
        self, kind: DevicePass, pass_: Pass, rows: range, n_past: int, results: Sequence[int]
    ) -> PassInputs:
        """Returns the inputs of a part of a pass."""
        if kind.n_rows not in self._inputs:
            self._inputs[kind.n_rows] = PassInputs(kind.n_rows, kind.n_results)
        inputs, tree = self._inputs[kind.n_rows], pass_.tree
        part = slice(pass_.n_known + rows.start, pass_.n_known + rows.stop)
        slots = range(n_past + part.start, n_past + part.stop)
        positions = n_past + np.asarray(tree.depths[part])
        if tree.is_chain:
            seen, in_tree = positions + 1, np.zeros((len(rows), 0), np.bool_)
        else:
            seen, in_tree = np.full(len(rows), n_past), tree.ancestry()[part]
        inputs.fill(tree.tokens[part], positions, slots, seen, in_tree, n_past, results)
        return inputs


class _Results:
    """What the parts of a pass gave, put together."""

    def __init__(self, pass_: Pass, model: CudaModel) -> None:
        n_rows, n_new = len(pass_.logit_rows), len(pass_.tree) - pass_.n_known
        n_copied = n_rows if pass_.with_logits else 0
        self._logits = np.empty((n_copied, model.vocab_size), np.float32)
        self._hidden = {
            layer: np.empty((n_new, model.config.hidden_size), np.float32)
            for layer in pass_.hidden_layers
        }
        self._stats = {
            name: np.empty((n_rows, *sizes), _DTYPES[dtype])
            for name, (dtype, sizes) in ROW_STATS.items()
        }

    def read(
        self, opened: OpenProgram, kind: DevicePass, rows: range, results: Sequence[int]
    ) -> None:
        """Reads what is wanted of a part; ``results``: which of all asked rows it gave."""
        for layer, states in self._hidden.items():
            part = states[rows.start : rows.stop]
            opened.read(kind.outputs[hidden_port(layer)], part)
        if not results:
            return
        if len(self._logits):
            part = np.empty((len(results), self._logits.shape[1]), np.float32)
            self._logits[results] = opened.read(kind.outputs[LOGITS], part)
        offsets = {name: kind.outputs[stats_port(name)] for name in self._stats}
        first, end = min(offsets.values()), max(offsets.values())
        last = next(array for name, array in self._stats.items() if offsets[name] == end)
        n_last = len(results) * last[:1].nbytes
        block = opened.read(first, np.empty(end + n_last - first, np.uint8))
        for name, array in self._stats.items():
            start, n_bytes = offsets[name] - first, len(results) * array[:1].nbytes
            values = block[start : start + n_bytes].view(array.dtype)
            array[results] = values.reshape(len(results), *array.shape[1:])

    def rows(self) -> Rows:
        """Returns all of it."""
        stats = {
            name: self._stats[name].astype(dtype, copy=False)
            for name, (dtype, _) in ROW_STATS.items()
        }
        return Rows(self._logits, self._hidden, RowStats(**stats))


def _read_program(graph: Path) -> DeviceProgram:
    try:
        return DeviceProgram.from_json(graph.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BundleError(
            f"{graph} cannot be read ({error}); check it with `edgedec inspect --verify`, or "
            "export the model again"
        ) from None


def _open_on_gpu(graph: Path, program: DeviceProgram) -> OpenProgram:
    kernels, weights = graph.with_name(KERNELS_NAME), graph.with_name(WEIGHTS_BESIDE)
    check_trusted(kernels)
    gpu = _choose_gpu(graph, program.arch)
    if weights.stat().st_size < program.sizes[WEIGHTS]:
        raise BundleError(
            f"{weights} has {weights.stat().st_size} bytes, its program reads "
            f"{program.sizes[WEIGHTS]}: export the model again"
        )
    with _said_in_one_line(graph, gpu):
        device = CudaDevice(gpu, kernels.read_bytes(), program.waits)
        try:
            return OpenProgram(program, device, weights)
        except (CudaError, MemoryError):
            device.close()
            raise


@contextmanager
def _said_in_one_line(graph: Path, gpu: GpuFacts) -> Iterator[None]:
    """Makes a BundleError of what keeps ``graph`` from starting on ``gpu``."""
    try:
        yield
    except MemoryError as error:
        raise BundleError(
            f"{graph} does not fit {gpu.name}, which has {gpu.n_bytes >> 20} MB ({error}): end "
            "other programs on it, or export a smaller model or --context"
        ) from None
    except CudaKernelsError as error:
        version = driver_version()
        raise BundleError(
            f"{graph} does not run on {gpu.name} ({error}; the driver supports CUDA {version}): "
            f"update NVIDIA's driver, or export the model again with --arch {gpu.arch} and the "
            f"nvcc of CUDA {version} or older"
        ) from None
    except CudaError as error:
        raise BundleError(
            f"{gpu.name} does not start ({error}): see whether `nvidia-smi` finds it busy or broken"
        ) from None


def _choose_gpu(graph: Path, arch: str) -> GpuFacts:
    """Returns the first GPU that the kernels run on: those for ``arch``, and newer ones."""
    try:
        gpus = find_gpus()
    except CudaError as error:
        gpus, why = [], str(error)
    else:
        why = ", ".join(f"{gpu.name} is {gpu.arch}" for gpu in gpus) or "the driver finds no GPU"
    for gpu in gpus:
        if gpu.runs(arch):
            return gpu
    again = f"with --arch {gpus[0].arch}" if gpus else "with --target cpu"
    raise BundleError(
        f"{graph} is for NVIDIA GPUs of {arch} or newer; {why}: run it where there is one, or "
        f"export the model again {again}"
    )
