"""Builds the source distribution, from it a wheel for each platform, and the wheel of the draft
heads, into dist/.

python tools/release/build.py [PLATFORM...]

`ziglang` is the compiler, so one machine builds for all. A PLATFORM is the tag of a wheel, such as
manylinux_2_28_x86_64. Without one, all are built.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from platforms import PLATFORMS, Platform, find_platform

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build/release"

TOOLCHAIN = """
set(CMAKE_SYSTEM_NAME {platform.system})
set(CMAKE_SYSTEM_PROCESSOR {platform.processor})
set(CMAKE_CXX_COMPILER "{python}" -m ziglang c++ -target {platform.target})
set(CMAKE_CXX_FLAGS_INIT -g0)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)
"""


def build_sdist(out: Path) -> Path:
    """Returns the source distribution, newly built in the folder ``out``."""
    run_build("--sdist", "--outdir", out, ROOT)
    return max(out.glob("*.tar.gz"), key=lambda path: path.stat().st_mtime_ns)


def unpack(sdist: Path) -> Path:
    """Returns the folder that the source distribution was unpacked to."""
    folder = WORK / "source"
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def build_wheel(source: Path, platform: Platform, out: Path) -> None:
    """Puts the wheel of ``platform`` into the folder ``out``."""
    # Files of the source distribution all have one date: nobody could say which are newer.
    folder = WORK / platform.tag
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    toolchain = folder / "toolchain.cmake"
    toolchain.write_text(TOOLCHAIN.format(platform=platform, python=sys.executable))
    settings = {
        "wheel.tags": f"py3-none-{platform.tag}",
        "build-dir": folder / "build",
        "cmake.define.CMAKE_TOOLCHAIN_FILE": toolchain,
        "install.strip": "false",  # the linker did; this machine's strip knows other files only
    }
    options = [f"-C{key}={value}" for key, value in settings.items()]
    run_build("--wheel", *options, "--outdir", out, source)


def build_heads(out: Path) -> None:
    """Puts the wheel of the draft heads, which serves all platforms, into the folder ``out``."""
    run_build("--wheel", "--outdir", out, ROOT / "heads")


def run_build(*arguments: object) -> None:
    """Runs `build` with the packages of this Python."""
    command = [sys.executable, "-m", "build", "--no-isolation", *map(str, arguments)]
    subprocess.run(command, check=True)


def build_all(platforms: tuple[Platform, ...], out: Path) -> None:
    """Puts the source distribution, the wheels of ``platforms`` and the heads into ``out``."""
    source = unpack(build_sdist(out))
    for platform in platforms:
        build_wheel(source, platform, out)
    build_heads(out)


def main() -> None:
    """Builds for the platforms that the command line names."""
    try:
        chosen = tuple(find_platform(tag) for tag in sys.argv[1:]) or PLATFORMS
    except ValueError as error:
        sys.exit(str(error))
    try:
        build_all(chosen, ROOT / "dist")
    except subprocess.CalledProcessError as error:
        sys.exit(f"build failed (exit code {error.returncode}): see above")


if __name__ == "__main__":
    main()
