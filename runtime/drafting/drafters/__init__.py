"""Drafting methods: one module or package per method, which users choose by its name.

A module states itself as ``METHOD``; that is all there is to adding one. `auto`, the help of
``--method`` and the documentation read it here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from edgedec.runtime.drafting.drafter_parts import DrafterParts, Need
from edgedec.runtime.drafting.extensions import extension_names, load_extension

if TYPE_CHECKING:  # what no drafter needs is not imported: it delays a first token
    from edgedec.runtime.drafting.drafter import Drafter, ModelDrafter


@dataclass(frozen=True)
class FreeMethod:
    """A method whose drafter takes microseconds. summary: what its guesses are, for users."""

    summary: str
    make: Callable[[DrafterParts], Drafter]
    need: Need | None = None
    is_automatic: ClassVar[bool] = True
    is_free: ClassVar[bool] = True


@dataclass(frozen=True)
class ModelMethod:
    """A method whose drafter runs passes of a model. summary: what its guesses are, for users.

    is_automatic: `auto` weighs it, too.
    """

    summary: str
    make: Callable[[DrafterParts], ModelDrafter]
    need: Need | None = None
    is_automatic: bool = True
    is_free: ClassVar[bool] = False


Method = FreeMethod | ModelMethod


@cache
def drafter_names() -> tuple[str, ...]:
    """Returns the names `find_drafter` knows, sorted."""
    names = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted((*names, *extension_names("drafter"))))


def find_drafter(name: str, parts: DrafterParts | None = None) -> Method:
    """Returns the method called ``name``, which must be one of `drafter_names`.

    parts: of an engine. A module may have a ``MODEL_METHOD``, too, which takes the place of its
    ``METHOD`` where there is the head that it needs.
    """
    if name in extension_names("drafter"):
        module = load_extension("drafter", name)
    else:
        module = importlib.import_module(f"{__name__}.{name}")
    with_model: ModelMethod | None = getattr(module, "MODEL_METHOD", None)
    if with_model is not None and parts is not None and with_model.need in parts.heads:
        return with_model
    method: Method = module.METHOD
    return method
