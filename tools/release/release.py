"""Checks the files in dist/, tries the wheel for this machine, writes hashes and an SBOM.

python tools/release/release.py [--build] [PYTHON...]

--build builds first. Each PYTHON tries the wheel, by default the one that runs this. Exits with 1
if a file is not fit to be published. Publishes nothing.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from bill import write_bill, write_hashes
from packaging.tags import sys_tags
from platforms import PLATFORMS
from wheel_checks import HEADS, ROOT, heads_faults, read_project, sdist_faults, wheel_faults

from build import build_all

DIST = ROOT / "dist"


def release_files() -> tuple[Path, list[Path], Path]:
    """Returns the source distribution, the wheels and that of the heads; SystemExit without one."""
    stem = read_project().stem
    sdist = DIST / f"{stem}.tar.gz"
    wheels = [DIST / f"{stem}-py3-none-{platform.tag}.whl" for platform in PLATFORMS]
    heads = DIST / f"{read_project(HEADS).stem}-py3-none-any.whl"
    missing = [path.name for path in (sdist, *wheels, heads) if not path.is_file()]
    if missing:
        sys.exit(f"dist/ lacks {', '.join(missing)}: run make wheels")
    return sdist, wheels, heads


def check_files(sdist: Path, wheels: list[Path], heads: Path) -> None:
    """Prints a line for each file; SystemExit if one has faults."""
    n_faults = 0
    checks = {sdist: sdist_faults, **dict.fromkeys(wheels, wheel_faults), heads: heads_faults}
    for path, find_faults in checks.items():
        faults = find_faults(path)
        n_faults += len(faults)
        print(
            f"{path.name}: {path.stat().st_size / 1e6:.2f} MB, {'; '.join(faults) or 'no faults'}"
        )
    if n_faults:
        sys.exit(f"{n_faults} faults")
    run("twine", "check", "--strict", sdist, *wheels, heads)
    for wheel in wheels:
        if "manylinux" in wheel.name:
            run("auditwheel", "show", wheel)


def run(module: str, *arguments: object) -> None:
    """Runs a program of this Python."""
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


def try_here(wheels: list[Path], heads: Path, pythons: list[str]) -> None:
    """Tries the wheel for this machine with the heads, and says which others nobody tried."""
    here = {tag.platform for tag in sys_tags()}
    for wheel in wheels:
        platform = wheel.stem.split("-py3-none-")[1]
        if platform in here:
            script = str(Path(__file__).parent / "smoke.py")
            command = [sys.executable, script, str(wheel), str(heads), *pythons]
            subprocess.run(command, check=True)
        else:
            print(f"{platform}: not tried, for it does not run here")


def main() -> None:
    """Does what the command line asks for."""
    parser = argparse.ArgumentParser(description="Checks the files of a release.")
    parser.add_argument("--build", action="store_true", help="build them first")
    parser.add_argument("python", nargs="*", help="try the wheel under these")
    options = parser.parse_args()
    try:
        if options.build:
            build_all(PLATFORMS, DIST)
        sdist, wheels, heads = release_files()
        check_files(sdist, wheels, heads)
        try_here(wheels, heads, options.python)
    except subprocess.CalledProcessError as error:
        sys.exit(f"{' '.join(map(str, error.cmd[1:4]))} failed: see above")
    files = (sdist, *wheels, heads)
    write_hashes(files, DIST / "SHA256SUMS")
    write_bill(files, DIST / f"{read_project().stem}.cdx.json")


if __name__ == "__main__":
    main()
