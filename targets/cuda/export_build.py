"""From kernels to what a GPU's driver loads: CUDA source through NVIDIA's nvcc."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from edgedec.kernels.cuda_driver import CudaError, find_gpus
from edgedec.kernels.device_program import INPUTS, KEYS, VALUES, WEIGHTS, WORK, DeviceProgram
from edgedec.models.errors import ConfigError
from edgedec.targets.cuda.export_cuda_source import CudaSource
from edgedec.targets.cuda.export_emit import Emitted, Weights
from edgedec.targets.cuda.target import DEVICE

_USUAL = Path("/usr/local/cuda/bin/nvcc")


def find_nvcc() -> Path:
    """Returns nvcc, of ``CUDA_HOME``, of the path or where the toolkit usually is.

    Raises:
        ConfigError: There is none.
    """
    home = os.environ.get("CUDA_HOME")
    for name in (str(Path(home) / "bin" / "nvcc") if home else None, "nvcc", str(_USUAL)):
        if name and (path := shutil.which(name)):
            return Path(path)
    raise ConfigError(
        "--target cuda compiles with nvcc, which is not here: install NVIDIA's CUDA toolkit "
        "(https://developer.nvidia.com/cuda-downloads), or name its folder in CUDA_HOME; no GPU is "
        "needed"
    )


def local_arch() -> str:
    """Returns what to compile for, so that this machine's first GPU runs it.

    That is its architecture, or the newest before it that bundles are made for.

    Raises:
        ConfigError: There is no GPU, or it is too old.
    """
    try:
        gpus = find_gpus()
    except CudaError as error:
        gpus, why = [], str(error)
    else:
        why = "the driver finds no GPU"
    if not gpus:
        known = DEVICE.chips_text()
        raise ConfigError(f"which GPU is the bundle for? {why}: name one by --arch: {known}")
    gpu, oldest = gpus[0], next(iter(DEVICE.chips))
    runs = [chip for chip in DEVICE.chips if gpu.runs(chip)]
    if not runs:
        raise ConfigError(
            f"{gpu.name} is {gpu.arch}, and bundles are for GPUs of {oldest} or newer: export with "
            "--target cpu, or name the GPU of another machine by --arch"
        )
    return runs[-1]


def device_program(
    emitted: Emitted, weights: Weights, source: CudaSource, arch: str
) -> DeviceProgram:
    """Returns the program of ``emitted``, launched as ``source`` states."""
    sizes = {
        WEIGHTS: weights.n_bytes,
        WORK: emitted.n_work,
        INPUTS: emitted.n_inputs,
        KEYS: emitted.n_kv,
        VALUES: emitted.n_kv,
    }
    return DeviceProgram(arch, source.waits, sizes, source.geometries, emitted.passes, emitted.keep)


def build_fatbin(source: CudaSource, arch: str, path: Path) -> None:
    """Compiles ``source`` to ``path``: code for ``arch``, and PTX for GPUs that come after it.

    Raises:
        ConfigError: nvcc is missing, or refuses.
    """
    nvcc, version = find_nvcc(), arch.removeprefix("sm_")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "kernels.cu"
        text.write_text(source.text, encoding="utf-8", newline="\n")
        codes = f"arch=compute_{version},code=[sm_{version},compute_{version}]"
        flags = ["-w", "-O3", "-fatbin", "-gencode", codes]
        command = [str(nvcc), *flags, "-o", str(path), str(text)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{nvcc} cannot compile for {arch}: {_reason(done.stderr)}")


def _reason(output: str) -> str:
    """Returns the line of a compiler's output that says why it failed."""
    lines = [line.strip()[:300] for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line or "fatal" in line]
    return next(iter([*telling, *reversed(lines)]), "no reason given")
