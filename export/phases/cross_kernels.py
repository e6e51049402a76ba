"""The kernels, built for the machine that a bundle is for, and put into it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs

from edgedec.export.phases.model_export import ModelExport
from edgedec.kernels import library
from edgedec.models.errors import ConfigError
from edgedec.models.graph import BUNDLED_KERNELS
from edgedec.targets.triples import Triple, find_triple

_CMAKE_FILE = "CMakeLists.txt"
_N_LINES = 3  # of the compiler's complaint


def add_kernels(model: ModelExport) -> None:
    """The kernels for another machine, all instruction sets of its processors."""
    assert model.config.kernels_triple is not None
    built = build_kernels(find_triple(model.config.kernels_triple))
    destination = model.bundle_folder / BUNDLED_KERNELS
    destination.parent.mkdir()
    shutil.copyfile(built, destination)


def check_tools(triple: Triple) -> tuple[Path, str, str]:
    """Returns what builds kernels for ``triple``: their sources, CMake, the compiler.

    Raises:
        ConfigError: One of them is missing.
    """
    sources = Path(library.__file__).parent
    if not (sources / _CMAKE_FILE).is_file():
        raise ConfigError(
            f"--triple {triple.name} builds kernels, whose sources this installation lacks: run "
            "it in a checkout of edgedec, after `make run`"
        )
    places = os.pathsep.join((str(Path(sys.executable).parent), *os.get_exec_path()))
    cmake = shutil.which("cmake", path=places)
    compiler = next((name for name in triple.compilers if shutil.which(name)), None)
    if cmake is None or compiler is None:
        missing = "pip install cmake" if cmake is None else f"apt-get install {triple.package}"
        raise ConfigError(
            f"--triple {triple.name} builds kernels with CMake and {triple.compilers[0]}: {missing}"
        )
    return sources, cmake, compiler


def build_kernels(triple: Triple) -> Path:
    """Returns the library for ``triple``, built in the user's cache: again only where it changed.

    Raises:
        ConfigError: It cannot be built.
    """
    sources, cmake, compiler = check_tools(triple)
    folder = Path(platformdirs.user_cache_dir("edgedec")) / "kernels" / triple.name
    _run(
        cmake, "-S", sources, "-B", folder, "-DCMAKE_SYSTEM_NAME=Linux", "-Wno-dev",
        f"-DCMAKE_SYSTEM_PROCESSOR={triple.processor}", f"-DCMAKE_CXX_COMPILER={compiler}",
        "-DCMAKE_BUILD_TYPE=Release",
    )  # fmt: skip
    _run(cmake, "--build", folder, "--parallel")
    return folder / Path(BUNDLED_KERNELS).name


def _run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        at = next((i for i, line in enumerate(lines) if "rror" in line), -_N_LINES)
        raise ConfigError(
            f"the kernels could not be built ({' '.join(lines[at:][:_N_LINES])}): see "
            "`make test` for whether they build for this machine"
        )
