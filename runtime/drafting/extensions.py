"""Methods that packages beside the runtime bring, by name.

A package registers its methods when it is imported. It may be missing: then nothing knows them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

from edgedec.models.errors import ConfigError

_PACKAGES = ("edgedec.labs",)
"""What is imported, where it is installed, when a method is asked for by its name."""

Kind = Literal["drafter", "unmask rule"]

_MODULES: dict[tuple[Kind, str], str] = {}


def register(kind: Kind, package: str, names: Sequence[str]) -> None:
    """Adds methods: a module of ``package`` each, imported when first asked for.

    A hyphen of a method's name is an underscore in its module's.
    """
    for name in names:
        _MODULES[kind, name] = f"{package}.{name.replace('-', '_')}"


def extension_names(kind: Kind) -> tuple[str, ...]:
    """Returns the names of the registered methods, sorted."""
    _import_packages()
    return tuple(sorted(name for known, name in _MODULES if known == kind))


def load_extension(kind: Kind, name: str) -> ModuleType:
    """Returns the module of a method.

    Raises:
        ConfigError: No installed package has registered it.
    """
    _import_packages()
    if (module := _MODULES.get((kind, name))) is None:
        raise ConfigError(
            f"{kind} {name} needs one of the packages {', '.join(_PACKAGES)}, which this "
            "installation leaves out: install edgedec whole"
        )
    return import_module(module)


@cache
def _import_packages() -> None:
    for package in _PACKAGES:
        if find_spec(package) is not None:
            import_module(package)
