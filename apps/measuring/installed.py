"""What edgedec finds installed: itself, and what its extras name."""

from __future__ import annotations

import hashlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.machinery import FileFinder
from pathlib import Path

import edgedec
from edgedec.models.installation import installed_distribution, package_version

_DEPENDENCY = re.compile(
    r"""^(?P<name>[\w.-]+)(\[(?P<nested>[^\]]*)\])?\s*\(?(?P<bounds>[^;)]*)\)?
        \s*(;.*extra\s*==\s*['"](?P<extra>[^'"]+)['"])?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class Requirement:
    """One package of an extra; ``installed`` is its version, or None."""

    name: str
    bounds: str
    installed: str | None


def extras() -> dict[str, tuple[Requirement, ...]]:
    """Returns the packages of every extra that edgedec's metadata names.

    An extra made of other extras lists their packages, too.
    """
    distribution = installed_distribution()
    if distribution is None:
        return {}
    own_name = distribution.metadata["Name"]
    rows = [
        row.groupdict()
        for line in distribution.requires or []
        if (row := _DEPENDENCY.match(line)) and row["extra"]
    ]
    requirements: dict[str, tuple[Requirement, ...]] = {}

    def expand(extra: str) -> dict[str, str]:
        packages: dict[str, str] = {}
        for row in rows:
            if row["extra"] != extra:
                continue
            if row["name"] == own_name:
                for nested in row["nested"].split(","):
                    packages |= expand(nested.strip())
            else:
                packages[row["name"]] = row["bounds"].strip()
        return packages

    for extra in dict.fromkeys(row["extra"] for row in rows):
        requirements[extra] = tuple(
            Requirement(name, bounds, package_version(name))
            for name, bounds in expand(extra).items()
        )
    return requirements


@cache
def sources_sha256() -> str:
    """Returns a hash of edgedec's Python modules.

    Wheels of one version for different processors have the same; a wheel of other sources does not.
    """
    digest = hashlib.sha256()
    for name, path in sorted(_modules("edgedec", edgedec.__path__)):
        digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _modules(package: str, places: Iterable[str]) -> Iterator[tuple[str, Path]]:
    """Yields name and file of every module of a package; nothing is imported."""
    for module in pkgutil.iter_modules(places):
        assert isinstance(module.module_finder, FileFinder)
        name, path = f"{package}.{module.name}", Path(module.module_finder.path) / module.name
        if module.ispkg:
            yield name, path / "__init__.py"
            yield from _modules(name, [str(path)])
        elif (source := path.with_suffix(".py")).is_file():
            yield name, source
