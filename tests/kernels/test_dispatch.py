"""Which kernels are built, and which of them this processor is said to run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.kernels import cpu

ROOT = Path(__file__).parents[2]
CPUINFO = Path("/proc/cpuinfo")

NEEDED = {
    "avx512vnni": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni", "fma", "f16c"},
    "avxvnni": {"avx2", "fma", "f16c", "avx_vnni"},
    "avx2": {"avx2", "fma", "f16c"},
    "neoni8mm": {"asimddp", "i8mm"},
    "neondot": {"asimddp"},
    "scalar": set(),
}
"""Instruction set, best first -> features as Linux names them."""


@pytest.mark.skipif(not CPUINFO.is_file(), reason="this system does not say what its CPU has")
def test_usable_instruction_sets_are_those_that_linux_names() -> None:
    lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    flags = {
        word
        for line in lines
        if line.lower().startswith(("flags", "features"))
        for word in line.split(":")[1].split()
    }
    expected = tuple(isa for isa, needed in NEEDED.items() if needed <= flags)
    assert cpu.available_isas() == expected


def configure(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Configures a build by a compiler that knows no AVX-VNNI."""
    compiler = tmp_path / "c++"
    real = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    compiler.write_text(
        '#!/bin/sh\nfor word; do case "$word" in -mavxvnni|*i8mm*)\n'
        f'  echo "unrecognized option $word" >&2; exit 1;; esac; done\nexec {real} "$@"\n'
    )
    compiler.chmod(0o755)
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    cmake = shutil.which("cmake", path=places)
    assert cmake is not None
    command = [cmake, "-S", ROOT / "kernels", "-B", tmp_path / "b", "-DCMAKE_BUILD_TYPE=Release"]
    return subprocess.run(
        [*command, f"-DCMAKE_CXX_COMPILER={compiler}", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.kernel
def test_a_compiler_that_lacks_an_instruction_set_fails_the_build(tmp_path: Path) -> None:
    done = configure(tmp_path)
    said = " ".join(done.stderr.split())
    assert done.returncode != 0
    # CMake names the processor it runs on itself; this process may run on an emulated one.
    found = re.search("this compiler cannot build the (avxvnni|neoni8mm) kernels", said)
    assert found is not None, said
    missing = found[1]
    assert f"-DEDGEDEC_LEAVE_OUT={missing}" in said
    done = configure(tmp_path, f"-DEDGEDEC_LEAVE_OUT={missing}")
    assert done.returncode == 0, done.stderr


@pytest.mark.kernel
def test_a_processor_without_kernels_of_its_own_builds_the_scalar_ones(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DCMAKE_SYSTEM_NAME=Linux", "-DCMAKE_SYSTEM_PROCESSOR=riscv64")
    assert done.returncode == 0, done.stderr
    assert "riscv64 has no kernels of its own: scalar ones only" in done.stderr
