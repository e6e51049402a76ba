"""A GPU, emulated: generated CUDA source compiled for the CPU, as a driver's library.

What runs is the source that nvcc would be given: its blocks, threads, barriers, shuffles and memory
accesses. What is not shown: speed, other rounding of a GPU's arithmetic, and its driver.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

_SHIM = Path(__file__).with_name("emulated_cuda.cc")
_KERNEL = re.compile(r'extern "C" __global__ void __launch_bounds__\(\d+\) (\w+)\(([^)]*)\) \{')


def build_driver(source: str, folder: Path) -> Path:
    """Returns a library that offers the driver's functions, and runs the kernels of ``source``."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is missing: it compiles what the emulated GPU runs")
    start = source.index('extern "C" __global__')
    kernels, wrappers = [], []
    parts = _KERNEL.split(source[start:])
    for name, parameters, code in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        types = [
            re.sub(r"\s*__restrict__\s+\w+$", "", each.strip()) for each in parameters.split(",")
        ]
        given = ", ".join(f"*static_cast<{kind}*>(a[{i}])" for i, kind in enumerate(types))
        wrappers.append(f"static void run_{name}(void** a) {{ {name}({given}); }}")
        has_barriers = "__syncthreads" in code or "__shfl" in code
        n_parameters, barriers = len(types), str(has_barriers).lower()
        kernels.append(f'{{"{name}", run_{name}, {barriers}, {n_parameters}}}')
    text = source[start:].replace('extern "C" __global__', "static __global__")
    text = text.replace("__shared__ alignas(64)", "alignas(64) static")
    (folder / "kernels.inc").write_text("\n".join([text, *wrappers]), encoding="utf-8")
    (folder / "driver.cc").write_text(
        '#define EMULATED_SOURCE "kernels.inc"\n'
        f"#define EMULATED_KERNELS {', '.join(kernels)}\n"
        f'#include "{_SHIM}"\n',
        encoding="utf-8",
    )
    library = folder / "libcuda.so.1"
    flags = "-O1 -U_FORTIFY_SOURCE -w -std=c++17 -shared -fPIC -fno-strict-aliasing"
    command = [compiler, *flags.split(), "-ffp-contract=off", "-I", str(folder), "-o", str(library)]
    done = subprocess.run(
        [*command, str(folder / "driver.cc")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]
    return library
