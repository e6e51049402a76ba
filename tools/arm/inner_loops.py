"""Counts the instructions of products as compiled for ARM, since emulation tells no time.

python tools/arm/inner_loops.py neondot [LLVM_MCA]

needs g++-aarch64-linux-gnu. A line for each format and number of rows: instructions for one row,
one group of 32 columns and a panel of 16 channels, with its share of what all rows have in common;
how many of them multiply, and how many read or write the stack.

LLVM_MCA, such as llvm-mca-19, adds the cycles that its model of each processor takes for them, with
all data in the first cache. This is a model, not a measurement. LLVM 19 has models for Neoverse N1
and V1. For Cortex-A76, A78AE and X1 it takes that of the older A57.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "kernels/src"
FLAGS = {"neondot": "-march=armv8.2-a+dotprod", "neoni8mm": "-march=armv8.2-a+dotprod+i8mm"}
FORMATS = ("kQ4K", "kQ6K", "kQ4_0", "kQ8_0")
ROWS = (1, 8)

PROGRAM = """
#include "simd_neon.h"
#include "tile_products.h"
constexpr int parts = edk::kParts;
extern "C" void tile(const edk::Operand* op, const uint8_t* panel, edk::Floats* out) {{
  edk::quantised_tiles<edk::{format}, {rows}, 1>(*op, panel, 0, out);
}}
"""

PROCESSORS = ("cortex-a76", "cortex-a78ae", "cortex-x1", "neoverse-n1", "neoverse-v1")
N_ITERATIONS = 100
PRODUCTS = 32
"""Dot products of 16 numbers for a row, 32 columns and 16 channels."""


@dataclass(frozen=True)
class Loop:
    """Instructions from the target of a jump backwards to that jump."""

    first: int
    last: int
    lines: tuple[str, ...]

    @property
    def n_products(self) -> int:
        """Dot products in it."""
        return sum("dot\t" in line for line in self.lines)

    @property
    def n_stack(self) -> int:
        """Reads and writes of the stack in it."""
        return sum("[sp" in line for line in self.lines)


def disassembly(isa: str, fmt: str, rows: int) -> list[tuple[int, str]]:
    """Returns addresses and instructions of the products of one panel."""
    compiler = ("aarch64-linux-gnu-g++", "-std=c++17", "-O3", "-ffp-contract=off", FLAGS[isa])
    with tempfile.TemporaryDirectory() as folder:
        program, made = Path(folder) / "tile.cc", Path(folder) / "tile.o"
        program.write_text(PROGRAM.format(format=fmt, rows=rows))
        subprocess.run([*compiler, "-I", SOURCES, "-c", program, "-o", made], check=True)
        objdump = ("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", made)
        text = subprocess.run(objdump, check=True, capture_output=True, text=True).stdout
    instructions = re.findall(r"^\s+([0-9a-f]+):\t(.*)$", text, re.MULTILINE)
    return [(int(address, 16), line) for address, line in instructions]


def loops(instructions: list[tuple[int, str]]) -> list[Loop]:
    """Returns the loops that end with a comparison, the shortest first."""
    at = {address: i for i, (address, _) in enumerate(instructions)}
    loops_ = []
    for last, (address, line) in enumerate(instructions):
        jump = re.match(r"b\.\w+\t([0-9a-f]+)", line)
        if jump and (to := int(jump[1], 16)) < address and to in at:
            first = at[to]
            lines = tuple(line for _, line in instructions[first : last + 1])
            loops_.append(Loop(first, last, lines))
    return sorted(loops_, key=lambda loop: len(loop.lines))


@dataclass(frozen=True)
class Group:
    """What a group of 32 columns of a panel takes: a loop, and what is done once around it."""

    inner: Loop
    once: tuple[str, ...]
    n_parts: int

    @property
    def n_instructions(self) -> int:
        """Instructions of all rows."""
        return self.n_parts * len(self.inner.lines) + len(self.once)

    def cycles(self, llvm_mca: str, processor: str) -> float:
        """Returns the cycles that a model of a processor takes for all rows."""
        inner = modelled_cycles(llvm_mca, processor, self.inner.lines)
        return self.n_parts * inner + modelled_cycles(llvm_mca, processor, self.once)


def find_group(isa: str, fmt: str, rows: int) -> Group:
    """Returns the loop over the parts of a panel, or over its groups if parts are unrolled."""
    instructions = disassembly(isa, fmt, rows)
    inner, *around = (loop for loop in loops(instructions) if loop.n_products)
    n_parts = PRODUCTS * rows // inner.n_products
    if n_parts == 1:
        return Group(inner, (), 1)
    group = next(loop for loop in around if loop.first <= inner.first and loop.last >= inner.last)
    lines = [line for _, line in instructions]
    once = lines[group.first : inner.first] + lines[inner.last + 1 : group.last + 1]
    return Group(inner, tuple(once), n_parts)


def modelled_cycles(llvm_mca: str, processor: str, lines: tuple[str, ...]) -> float:
    """Returns the cycles that a processor of llvm-mca takes for instructions without their jumps.

    A jump out of a loop is not taken, so what it tests is a comparison.
    """
    text = ""
    for line in lines:
        bare = re.sub(r"<.*|//.*", "", line)
        if jump := re.match(r"cbn?z\t(\w+),", bare):
            text += f"cmp\t{jump[1]}, #0\n"
        elif not re.match(r"b(\.\w+)?\t", bare):
            text += bare + "\n"
    if not text:
        return 0.0
    command = (llvm_mca, "-mtriple=aarch64-linux-gnu", f"-mcpu={processor}", "-mattr=+i8mm",
               f"-iterations={N_ITERATIONS}")  # fmt: skip
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    match = re.search(r"Total Cycles:\s+(\d+)", done.stdout)
    assert match is not None, done.stdout
    return int(match[1]) / N_ITERATIONS


def count(isa: str, fmt: str, rows: int, llvm_mca: str | None) -> str:
    """Returns a line of the table."""
    group = find_group(isa, fmt, rows)
    products, stack = (
        group.n_parts * k / rows for k in (group.inner.n_products, group.inner.n_stack)
    )
    line = (
        f"{fmt:6} {rows} rows: {group.n_instructions / rows:6.1f}, {products:5.1f} of them multiply"
        f", stack {stack:5.1f}"
    )
    if llvm_mca is None:
        return line
    cycles = (
        f"{processor} {group.cycles(llvm_mca, processor) / rows:.1f}" for processor in PROCESSORS
    )
    return f"{line}; cycles: {', '.join(cycles)}"


def main() -> None:
    """Counts for the instruction set that the command line names."""
    if len(sys.argv) not in (2, 3) or sys.argv[1] not in FLAGS:
        sys.exit(f"usage: inner_loops.py {'|'.join(FLAGS)} [LLVM_MCA]")
    for fmt in FORMATS:
        for rows in ROWS:
            print(count(sys.argv[1], fmt, rows, sys.argv[2] if len(sys.argv) == 3 else None))


if __name__ == "__main__":
    main()
