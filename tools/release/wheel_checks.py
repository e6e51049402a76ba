"""What is wrong with a wheel or a source distribution, read from its file."""

from __future__ import annotations

import base64
import csv
import hashlib
import re
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

from library_checks import library_faults
from platforms import Platform, find_platform

ROOT = Path(__file__).resolve().parents[2]
HEADS = ROOT / "heads"
MAX_BYTES, MAX_HEADS_BYTES = 5_000_000, 60_000_000

NEEDED = (
    "edgedec/__init__.py",
    "edgedec/py.typed",
    "edgedec/apps/cli.py",
    "edgedec/export/heads/shipped_heads.py",  # not left out with the distribution of the heads
)
UNWANTED = r"(.*/)?(tests|src|__pycache__|tools|docs)/.*|.*\.(pyc|cc|h|map|o|a|lib|gguf)|.*CMake.*"
NATIVE = (".so", ".dll", ".dylib", ".pyd")
SOURCES = (
    "pyproject.toml",
    "LICENSE",
    "README.md",
    "kernels/CMakeLists.txt",
    "export/heads/shipped_heads.py",
)


@dataclass(frozen=True)
class Project:
    """What pyproject.toml states."""

    name: str
    version: str

    @property
    def stem(self) -> str:
        """Name and version as names of files have them."""
        return f"{re.sub(r'[-_.]+', '_', self.name).lower()}-{self.version}"


def read_project(folder: Path = ROOT) -> Project:
    """Returns name and version of the distribution that ``folder`` makes."""
    with (folder / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    return Project(project["name"], project["version"])


def wheel_faults(path: Path) -> list[str]:
    """Returns a line for each thing that is wrong with the wheel."""
    project = read_project()
    named = re.fullmatch(rf"{re.escape(project.stem)}-py3-none-(\w+)\.whl", path.name)
    if named is None:
        return [f"got {path.name}, expected {project.stem}-py3-none-PLATFORM.whl"]
    try:
        platform = find_platform(named[1])
        with zipfile.ZipFile(path) as wheel:
            return [*size_faults(path), *content_faults(wheel, platform, project)]
    except (ValueError, zipfile.BadZipFile) as error:
        return [str(error)]


def heads_faults(path: Path) -> list[str]:
    """Returns a line for each thing that is wrong with the wheel of the draft heads."""
    project = read_project(HEADS)
    expected = f"{project.stem}-py3-none-any.whl"
    if path.name != expected:
        return [f"got {path.name}, expected {expected}"]
    try:
        with zipfile.ZipFile(path) as wheel:
            return [*size_faults(path, MAX_HEADS_BYTES), *head_file_faults(wheel, project)]
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        return [str(error)]


def head_file_faults(wheel: zipfile.ZipFile, project: Project) -> Iterator[str]:
    """Files that the list of heads does not name, or has other hashes of."""
    info, folder = f"{project.stem}.dist-info", "edgedec_heads"
    listed = tomllib.loads(wheel.read(f"{folder}/heads.toml").decode())
    hashes = {f"{folder}/{entry['file']}": entry["sha256"] for entry in listed.values()}
    known = {f"{folder}/__init__.py", f"{folder}/heads.toml", *hashes}
    for name in sorted(set(wheel.namelist()) - known):
        if not name.startswith(f"{info}/"):
            yield f"holds {name}"
    for name, sha256 in hashes.items():
        if hashlib.sha256(wheel.read(name)).hexdigest() != sha256:
            yield f"{name} is not as heads.toml says"
    if f"{info}/licenses/LICENSE" not in wheel.namelist():
        yield "lacks its licence"
    yield from record_faults(wheel, f"{info}/RECORD")


def size_faults(path: Path, max_bytes: int = MAX_BYTES) -> Iterator[str]:
    """Whether the file is larger than promised."""
    if (n_bytes := path.stat().st_size) > max_bytes:
        yield f"has {n_bytes / 1e6:.1f} MB, expected {max_bytes / 1e6:.0f} at most"


def content_faults(wheel: zipfile.ZipFile, platform: Platform, project: Project) -> Iterator[str]:
    """What is wrong inside of a wheel."""
    names = wheel.namelist()
    info = f"{project.stem}.dist-info"
    library = f"edgedec/kernels/{platform.library}"
    needed = (*NEEDED, library, *(f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD")),
              f"{info}/entry_points.txt", f"{info}/licenses/LICENSE")  # fmt: skip
    if missing := sorted(set(needed) - set(names)):
        yield f"lacks {', '.join(missing)}"
        return
    for name in names:
        is_ours = name.startswith(("edgedec/", f"{info}/")) and ".." not in name
        is_stray = name.endswith(NATIVE) and name != library
        if not is_ours or is_stray or re.fullmatch(UNWANTED, name):
            yield f"holds {name}"
    yield from metadata_faults(wheel, info, platform, project)
    yield from record_faults(wheel, f"{info}/RECORD")
    yield from (f"{library}: {fault}" for fault in library_faults(wheel.read(library), platform))


def metadata_faults(
    wheel: zipfile.ZipFile, info: str, platform: Platform, project: Project
) -> Iterator[str]:
    """Whether a wheel says of itself what its name and pyproject.toml say."""
    tags = message_from_bytes(wheel.read(f"{info}/WHEEL")).get_all("Tag")
    if tags != [f"py3-none-{platform.tag}"]:
        yield f"WHEEL has tags {tags}, expected py3-none-{platform.tag}"
    metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
    if (metadata["Name"], metadata["Version"]) != (project.name, project.version):
        yield (
            f"METADATA has {metadata['Name']} {metadata['Version']}, "
            f"expected {project.name} {project.version}"
        )
    if b"edgedec=edgedec.apps.cli:main" not in wheel.read(f"{info}/entry_points.txt").replace(
        b" ", b""
    ):
        yield "installs no command edgedec"


def record_faults(wheel: zipfile.ZipFile, record: str) -> Iterator[str]:
    """Files that are not as RECORD says."""
    rows = csv.reader(wheel.read(record).decode().splitlines())
    hashes = {name: digest for name, digest, _ in rows}
    for name in wheel.namelist():
        digest = base64.urlsafe_b64encode(hashlib.sha256(wheel.read(name)).digest())
        expected = f"sha256={digest.decode().rstrip('=')}"
        if name != record and hashes.get(name) != expected:
            yield f"{name} is not as RECORD says"


def sdist_faults(path: Path) -> list[str]:
    """Returns a line for each thing that is wrong with the source distribution."""
    stem = read_project().stem
    if path.name != f"{stem}.tar.gz":
        return [f"got {path.name}, expected {stem}.tar.gz"]
    with tarfile.open(path) as archive:
        names = set(archive.getnames())
    expected = [*SOURCES, *(str(file.relative_to(ROOT)) for file in ROOT.glob("kernels/src/*"))]
    return [f"lacks {name}" for name in sorted(expected) if f"{stem}/{name}" not in names]
