"""Programs of kernels for a device with memory of its own: lists of launches, and what runs them.

A program is data: names of kernels, how each is launched, and for every kind of pass which kernels
run over which places in the device's memory. Whoever made it knows the model; nothing here does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

SCALARS = 4
"""Numbers that all rows of a pass share: see `PassInputs`."""

MASK_WORDS = 32
"""Words of 32 bits that say which rows of a tree a row sees."""

MAX_TREE = 32 * MASK_WORDS
"""Most tokens of a pass that are no chain."""

ALIGNMENT = 256
"""Bytes that every place in a device's memory is a multiple of."""

WEIGHTS, KEYS, VALUES, WORK, INPUTS = "weights", "keys", "values", "work", "inputs"
"""Memory that arguments of kernels lie in; keys and values are those of one text."""

_MEMORY = (WEIGHTS, KEYS, VALUES, WORK, INPUTS)
_UPLOAD_BYTES = 64 << 20

Array = npt.NDArray[Any]


class Argument(NamedTuple):
    """A place in the device's memory: which part, and how many bytes from its beginning."""

    memory: str
    offset: int


@dataclass(frozen=True)
class KernelLaunch:
    """A kernel over arguments, in the order of the function that it was compiled from."""

    kernel: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class KernelGeometry:
    """How a kernel is launched.

    order: for each parameter of the compiled kernel, which argument of the function it is.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    order: tuple[int, ...]


class KernelCall(NamedTuple):
    """A kernel over addresses in a device's memory, in the order of `KernelLaunch.arguments`."""

    kernel: str
    geometry: KernelGeometry
    addresses: tuple[int, ...]


@dataclass(frozen=True)
class DevicePass:
    """One kind of pass: ``n_rows`` tokens, results of ``n_results`` of them.

    outputs: name -> where in the working memory it is.
    """

    n_rows: int
    n_results: int
    launches: tuple[KernelLaunch, ...]
    outputs: Mapping[str, int]


@dataclass(frozen=True)
class DeviceProgram:
    """All that a device runs of a model.

    arch: of the devices that its kernels are for. waits: each kernel waits for the one before, so
    that it may be launched before that ends. sizes: bytes of each kind of memory. passes: by rising
    rows. keep: what moves rows of the KV cache together.
    """

    arch: str
    waits: bool
    sizes: Mapping[str, int]
    kernels: Mapping[str, KernelGeometry]
    passes: tuple[DevicePass, ...]
    keep: KernelLaunch

    def to_json(self) -> str:
        """Returns the program as text."""
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> DeviceProgram:
        """Returns the program that `to_json` wrote.

        Raises:
            ValueError: It is not one.
        """
        try:
            fields = json.loads(text)
            program = cls(
                arch=str(fields["arch"]),
                waits=bool(fields["waits"]),
                sizes={name: int(fields["sizes"][name]) for name in _MEMORY},
                kernels={name: _geometry(value) for name, value in fields["kernels"].items()},
                passes=tuple(map(_pass, fields["passes"])),
                keep=_launch(fields["keep"]),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"no program of a device: {type(error).__name__} {error}") from None
        program.check()
        return program

    def check(self) -> None:
        """Raises a ValueError where something refers to what there is not."""
        launches = [self.keep, *(launch for each in self.passes for launch in each.launches)]
        for launch in launches:
            geometry = self.kernels.get(launch.kernel)
            if geometry is None:
                raise ValueError(f"a pass launches {launch.kernel!r}, which is no kernel of it")
            if sorted(geometry.order) != list(range(len(launch.arguments))):
                raise ValueError(
                    f"{launch.kernel} is launched with {len(launch.arguments)} arguments"
                )
            for memory, offset in launch.arguments:
                if memory not in self.sizes or not 0 <= offset < max(self.sizes[memory], 1):
                    raise ValueError(f"{launch.kernel} is launched over {memory} at {offset}")
        rows = [each.n_rows for each in self.passes]
        if not rows or rows != sorted(set(rows)) or rows[0] != 1:
            raise ValueError(f"passes have {rows} rows, expected 1 and rising numbers")


def _geometry(fields: Mapping[str, Any]) -> KernelGeometry:
    (gx, gy, gz), (bx, by, bz) = (map(int, fields[key]) for key in ("grid", "block"))
    return KernelGeometry((gx, gy, gz), (bx, by, bz), tuple(map(int, fields["order"])))


def _pass(fields: Mapping[str, Any]) -> DevicePass:
    return DevicePass(
        int(fields["n_rows"]),
        int(fields["n_results"]),
        tuple(map(_launch, fields["launches"])),
        {str(name): int(offset) for name, offset in fields["outputs"].items()},
    )


def _launch(fields: Mapping[str, Any]) -> KernelLaunch:
    arguments = (Argument(str(memory), int(offset)) for memory, offset in fields["arguments"])
    return KernelLaunch(str(fields["kernel"]), tuple(arguments))


class PassInputs:
    """What the host gives a pass, in one part of memory of int32.

    Shapes: ids, positions [n_rows]; seen [n_rows]: rows of the KV cache, from the first on, that a
        row sees all of; slots [n_rows]: the row of the KV cache it writes, -1 for none; mask
        [n_rows, `MASK_WORDS`]: bit i says that it sees row base + i, too; results [n_results]: rows
        whose logits are wanted; scalars: rows of the KV cache that are in use, base.
    """

    def __init__(self, n_rows: int, n_results: int) -> None:
        sizes = {
            "ids": (n_rows,), "positions": (n_rows,), "seen": (n_rows,), "slots": (n_rows,),
            "mask": (n_rows, MASK_WORDS), "results": (n_results,), "scalars": (SCALARS,),
        }  # fmt: skip
        self.offsets, end = {}, 0
        for name, shape in sizes.items():
            self.offsets[name] = end
            end += -(-4 * int(np.prod(shape)) // ALIGNMENT) * ALIGNMENT
        self.nbytes = end
        self.memory = np.zeros(end // 4, np.int32)
        self.ids, self.positions, self.seen, self.slots, self.mask, self.results, self.scalars = (
            self.memory[offset // 4 : offset // 4 + int(np.prod(shape))].reshape(shape)
            for offset, shape in zip(self.offsets.values(), sizes.values(), strict=True)
        )

    def fill(
        self,
        ids: Sequence[int],
        positions: Sequence[int] | Array,
        slots: range,
        seen: Sequence[int] | Array,
        in_tree: Array,
        base: int,
        results: Sequence[int],
    ) -> None:
        """Writes a pass over ``ids``; rows behind them fill it up.

        Args:
            slots: rows of the KV cache that it writes; those before their end are in use.
            in_tree: which of the rows from ``base`` on each row sees [len(ids), n] bool.
            results: rows whose logits are wanted.
        """
        n, n_results = len(ids), len(results)
        self.memory.fill(0)
        self.seen.fill(1)  # rows that fill up see something, for a sum of nothing is no divisor
        self.slots.fill(-1)
        self.ids[:n], self.positions[:n], self.seen[:n] = ids, positions, seen
        self.slots[:n] = slots
        bits = np.packbits(in_tree, axis=1, bitorder="little")
        self.mask.view(np.uint8)[:n, : bits.shape[1]] = bits
        self.results[:n_results] = results
        self.scalars[:2] = slots.stop, base


class KeepInputs:
    """What the host gives the kernel that moves rows together.

    Shapes: places [`MAX_TREE`]: rows of the KV cache, rising; scalars: how many, and where the
        first one goes.
    """

    def __init__(self) -> None:
        self.offsets = {"places": 0, "scalars": 4 * MAX_TREE}
        self.nbytes = 4 * MAX_TREE + ALIGNMENT
        self.memory = np.zeros(self.nbytes // 4, np.int32)
        self.places = self.memory[:MAX_TREE]
        self.scalars = self.memory[MAX_TREE : MAX_TREE + SCALARS]


def parts_of_pass(
    passes: Sequence[DevicePass], n_rows: int, logit_rows: Sequence[int]
) -> Iterator[tuple[DevicePass, range]]:
    """Yields the parts of a pass of ``n_rows``, whose rows ``logit_rows`` give logits.

    A part is of the smallest kind that all rows left fit into; if there is none, of the largest
    that gives as many logits as are asked for.
    """
    start = 0
    while start < n_rows:
        left = n_rows - start
        fitting = [
            kind
            for kind in passes
            if sum(start <= row < start + kind.n_rows for row in logit_rows) <= kind.n_results
        ]
        chosen = next((kind for kind in fitting if kind.n_rows >= left), fitting[-1])
        yield chosen, range(start, min(start + chosen.n_rows, n_rows))
        start += chosen.n_rows


class Device(Protocol):
    """What runs kernels over memory of its own. Failures are RuntimeErrors."""

    def allocate(self, n_bytes: int) -> int:
        """Returns the address of so many bytes; a MemoryError where there are not so many."""

    def free(self, address: int) -> None:
        """Gives memory back."""

    def write(self, address: int, values: Array) -> None:
        """Copies ``values`` to the device."""

    def read(self, address: int, values: Array) -> None:
        """Copies from the device to ``values``, behind all that was launched."""

    def prepare(self, calls: Sequence[KernelCall]) -> Any:
        """Returns what `launch` takes, for ``calls`` one after the other."""

    def launch(self, prepared: Any) -> None:
        """Runs what `prepare` returned."""

    def discard(self, prepared: Any) -> None:
        """Gives back what `prepare` returned."""

    def close(self) -> None:
        """Gives all back."""


class OpenProgram:
    """A program on a device, its weights uploaded."""

    def __init__(self, program: DeviceProgram, device: Device, weights: Path) -> None:
        """Raises a RuntimeError, or a MemoryError, where the device fails."""
        self.program, self.device = program, device
        self._addresses = {
            name: device.allocate(program.sizes[name]) for name in (WEIGHTS, WORK, INPUTS)
        }
        self._upload(weights)

    def new_cache(self) -> DeviceCache:
        """Returns memory for the keys and values of one text."""
        return DeviceCache(self)

    def address(self, memory: str) -> int:
        """Returns where the weights, the working memory or the inputs begin."""
        return self._addresses[memory]

    def read(self, offset: int, values: Array) -> Array:
        """Fills ``values`` from the working memory and returns them."""
        self.device.read(self._addresses[WORK] + offset, values)
        return values

    def close(self) -> None:
        """Gives the device back."""
        self.device.close()

    def _upload(self, weights: Path) -> None:
        n_weight_bytes = self.program.sizes[WEIGHTS]
        with weights.open("rb") as file:
            for start in range(0, n_weight_bytes, _UPLOAD_BYTES):
                part = np.fromfile(file, np.uint8, min(_UPLOAD_BYTES, n_weight_bytes - start))
                self.device.write(self._addresses[WEIGHTS] + start, part)


class DeviceCache:
    """Keys and values of one text on the device, and the passes that write them."""

    def __init__(self, opened: OpenProgram) -> None:
        self._opened = opened
        sizes, device = opened.program.sizes, opened.device
        self._addresses = {name: device.allocate(sizes[name]) for name in (KEYS, VALUES)}
        self._prepared: dict[int, Any] = {}
        self._keep = device.prepare([self._call(opened.program.keep)])
        self._keep_inputs = KeepInputs()

    def run(self, kind: DevicePass, inputs: PassInputs) -> None:
        """Runs a pass; its outputs are in the working memory until the next one."""
        device = self._opened.device
        if kind.n_rows not in self._prepared:
            self._prepared[kind.n_rows] = device.prepare([*map(self._call, kind.launches)])
        device.write(self._opened.address(INPUTS), inputs.memory)
        device.launch(self._prepared[kind.n_rows])

    def keep(self, base: int, places: Sequence[int]) -> None:
        """Moves the rows ``places``, which rise, to ``base`` and those behind it."""
        inputs, device = self._keep_inputs, self._opened.device
        inputs.places[: len(places)] = places
        inputs.scalars[:2] = len(places), base
        device.write(self._opened.address(INPUTS), inputs.memory)
        device.launch(self._keep)

    def download(self, name: str, values: Array) -> Array:
        """Fills ``values`` with all keys, or all values, and returns them."""
        self._opened.device.read(self._addresses[name], values)
        return values

    def upload(self, name: str, values: Array) -> None:
        """Replaces all keys, or all values."""
        self._opened.device.write(self._addresses[name], values)

    def close(self) -> None:
        """Gives the memory back."""
        device = self._opened.device
        for prepared in (self._keep, *self._prepared.values()):
            device.discard(prepared)
        self._prepared.clear()
        for address in self._addresses.values():
            device.free(address)
        self._addresses.clear()

    def _call(self, launch: KernelLaunch) -> KernelCall:
        addresses = tuple(
            (self._addresses[memory] if memory in self._addresses else self._opened.address(memory))
            + offset
            for memory, offset in launch.arguments
        )
        return KernelCall(launch.kernel, self._opened.program.kernels[launch.kernel], addresses)
