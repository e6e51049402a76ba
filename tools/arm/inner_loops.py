"""Counts the instructions of products as compiled for ARM, since emulation tells no time.

python tools/arm/inner_loops.py neondot

needs g++-aarch64-linux-gnu. A line for each format and number of rows: instructions for one row,
one group of 32 columns and a panel of 16 channels, with its share of what all rows have in common;
how many of them multiply, and how many read or write the stack.
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
#include "tiles.h"
constexpr int parts = edk::kParts;
extern "C" void tile(const edk::Operand* op, const uint8_t* panel, edk::Floats* out) {{
  edk::quantised_tiles<edk::{format}, {rows}, 1>(*op, panel, 0, out);
}}
"""


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
    found = re.findall(r"^\s+([0-9a-f]+):\t(.*)$", text, re.MULTILINE)
    return [(int(address, 16), line) for address, line in found]


def loops(instructions: list[tuple[int, str]]) -> list[Loop]:
    """Returns the loops that end with a comparison, the shortest first."""
    at = {address: i for i, (address, _) in enumerate(instructions)}
    found = []
    for last, (address, line) in enumerate(instructions):
        jump = re.match(r"b\.\w+\t([0-9a-f]+)", line)
        if jump and (to := int(jump[1], 16)) < address and to in at:
            first = at[to]
            lines = tuple(line for _, line in instructions[first : last + 1])
            found.append(Loop(first, last, lines))
    return sorted(found, key=lambda loop: len(loop.lines))


def count(isa: str, fmt: str, rows: int) -> str:
    """Returns a line of the table."""
    inner, *around = (one for one in loops(disassembly(isa, fmt, rows)) if one.n_products)
    header = (SOURCES / "simd_neon.h").read_text()
    parts = re.search(r"kParts = (\d+)", header)
    n_parts = int(parts[1]) if parts and inner.n_products < 32 * rows else 1  # else unrolled
    group = next(one for one in around if one.first <= inner.first and one.last >= inner.last)
    once = len(group.lines) - len(inner.lines) if n_parts > 1 else 0
    n = (n_parts * len(inner.lines) + once) / rows
    products, stack = (n_parts * k / rows for k in (inner.n_products, inner.n_stack))
    return f"{fmt:6} {rows} rows: {n:6.1f}, {products:5.1f} of them multiply, stack {stack:5.1f}"


def main() -> None:
    """Counts for the instruction set that the command line names."""
    if len(sys.argv) != 2 or sys.argv[1] not in FLAGS:
        sys.exit(f"usage: inner_loops.py {'|'.join(FLAGS)}")
    for fmt in FORMATS:
        for rows in ROWS:
            print(count(sys.argv[1], fmt, rows))


if __name__ == "__main__":
    main()
