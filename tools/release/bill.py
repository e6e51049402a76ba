"""What is in a release: hashes of its files, and a bill of materials (CycloneDX)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from wheel_checks import ROOT, read_project

LLVM_LICENSE = "Apache-2.0 WITH LLVM-exception"
LINKED = (
    ("libc++", LLVM_LICENSE, "C++ library, linked into the kernels of every wheel"),
    (
        "libunwind",
        LLVM_LICENSE,
        "unwinder, linked into the kernels of the wheels for Linux and Windows",
    ),
    ("compiler-rt", LLVM_LICENSE, "support routines of the compiler, linked into every wheel"),
    ("mingw-w64", "ZPL-2.1", "start-up code, linked into the kernels of the wheels for Windows"),
)
"""Code of others inside the wheels, all of it from the distribution of the compiler."""


def sha256(path: Path) -> str:
    """Returns the digest of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_hashes(files: Iterable[Path], path: Path) -> None:
    """Writes a line for each file, as `sha256sum --check` reads them."""
    lines = [f"{sha256(file)}  {file.name}\n" for file in sorted(files)]
    path.write_text("".join(lines), encoding="utf-8")


def write_bill(files: Iterable[Path], path: Path) -> None:
    """Writes which files a release has, what was linked into them and what they need."""
    project = read_project()
    bom = Bom()
    component = Component(
        name=project.name, version=project.version, type=ComponentType.APPLICATION,
        bom_ref="edgedec", licenses=[LicenseExpression("Apache-2.0")],
        purl=PackageURL("pypi", None, project.name, project.version),
    )  # fmt: skip
    bom.metadata.component = component
    parts = [
        *map(file_component, sorted(files)),
        *linked_components(),
        *bundled_components(),
        *needed_components(),
    ]
    for part in parts:
        bom.components.add(part)
    bom.register_dependency(component, parts)
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    path.write_text(outputter.output_as_string(indent=2) + "\n", encoding="utf-8")


def file_component(path: Path) -> Component:
    """Returns a file of the release with its hash."""
    digest = HashType(alg=HashAlgorithm.SHA_256, content=sha256(path))
    return Component(name=path.name, type=ComponentType.FILE, bom_ref=path.name, hashes=[digest])


def linked_components() -> list[Component]:
    """Returns the code of others that was linked in, as the compiler's package brings it."""
    zig = importlib.metadata.version("ziglang")
    clang = subprocess.run(
        [sys.executable, "-m", "ziglang", "clang", "--version"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    version = re.search(r"version ([\d.]+)", clang)
    llvm = version[1] if version else f"of ziglang {zig}"
    return [
        Component(
            name=name, version=llvm if license_id == LLVM_LICENSE else f"of ziglang {zig}",
            type=ComponentType.LIBRARY, bom_ref=name, description=description,
            licenses=[LicenseExpression(license_id)],
        )
        for name, license_id, description in LINKED
    ]  # fmt: skip


def bundled_components() -> list[Component]:
    """Returns the scripts of others that the page of `edgedec serve` brings."""
    text = (ROOT / "apps/serve/page/vendor/versions.json").read_text(encoding="utf-8")
    return [
        Component(
            name=facts["package"], version=facts["version"], type=ComponentType.LIBRARY,
            bom_ref=f"npm:{name}", description="script of the page of `edgedec serve`",
            licenses=[LicenseExpression(facts["license"])],
            purl=PackageURL("npm", None, facts["package"], facts["version"]),
        )
        for name, facts in json.loads(text).items()
    ]  # fmt: skip


def needed_components() -> list[Component]:
    """Returns what pip installs along, as pyproject.toml bounds it."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        dependencies = tomllib.load(file)["project"]["dependencies"]
    named = [re.fullmatch(r"([\w.-]+)(.*)", line) for line in dependencies]
    return [
        Component(
            name=match[1], type=ComponentType.LIBRARY, bom_ref=f"pypi:{match[1]}",
            description=f"needed: {line}", purl=PackageURL("pypi", None, match[1]),
        )
        for match, line in zip(named, dependencies, strict=True)
        if match is not None
    ]  # fmt: skip
