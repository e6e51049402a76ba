"""Drafting methods: one module or package per method, which users choose by its name.

A module states itself as ``METHOD``; that is all there is to adding one. `auto`, the help of
``--method`` and the documentation read it here.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from edgedec.runtime.drafting.labs import lab_module, lab_names

if TYPE_CHECKING:  # what no drafter needs is not imported: it delays a first token
    from edgedec.runtime.drafting.core_split import CoreSplit
    from edgedec.runtime.drafting.draft_role import DraftRole
    from edgedec.runtime.drafting.drafter import Drafter, ModelDrafter
    from edgedec.runtime.drafting.head_role import HeadRole
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
    from edgedec.runtime.drafting.probe import Probe
    from edgedec.runtime.drafting.skip_set import SkipSet


class Need(Enum):
    """What a method may need besides the text.

    advice: what it is, and what to do where it is missing. option: what brings it on the command
    line.
    """

    STORE = (
        "an n-gram store: name its file (--store FILE, or EngineOptions(store=...))",
        "--store FILE",
    )
    DRAFT_MODEL = (
        "a draft model: export the bundle with --draft, or name another bundle to draft with",
        "--draft BUNDLE",
    )
    EAGLE = (
        "a draft head: train one with edgedec train head",
        "edgedec train head",
    )
    HYDRA = (
        "light draft heads: train them with edgedec train head --kind hydra",
        "edgedec train head --kind hydra",
    )
    MEDUSA = (
        "light draft heads: train them with edgedec train head --kind medusa",
        "edgedec train head --kind medusa",
    )
    MTP = (
        "light heads in the model's own graph: train them with edgedec train head --kind hydra",
        "edgedec train head --kind hydra",
    )
    EXIT = (
        "an early exit: export the model again with --exit, or train one with edgedec train exit",
        "--exit",
    )
    PROBE = (
        "a probe of this draft model: fit one with edgedec train probe",
        "edgedec train probe",
    )
    SKIP_SET = (
        "sub-layers that may be left out: find some with edgedec tune --skip",
        "edgedec tune --skip",
    )

    def __init__(self, advice: str, option: str) -> None:
        self.advice = advice
        self.option = option


@dataclass(frozen=True)
class DrafterParts:
    """What drafters of one engine are made of.

    open_draft: opens the draft model, the same one whenever it is called; None if there is none.
    is_store_growing: whether texts are added to the store when they end.
    skip_set: sub-layers that the target model may leave out while it drafts, if any are known.
    open_heads: opens the draft head or that of early exits, likewise, by the need that it meets.
    mtp: kind of the light heads in the target model's graph, if it has some.
    probe: on the draft model's hidden states, if one was fitted.
    """

    store: NgramStore | None = None
    is_store_growing: bool = True
    open_draft: Callable[[], DraftRole] | None = None
    skip_set: SkipSet | None = None
    open_heads: Mapping[Need, Callable[[], HeadRole]] = field(default_factory=dict)
    mtp: str | None = None
    probe: Probe | None = None

    def has(self, need: Need | None) -> bool:
        """Whether what a method needs is there."""
        if need is None:
            return True
        parts = {
            Need.STORE: self.store,
            Need.DRAFT_MODEL: self.open_draft,
            Need.SKIP_SET: self.skip_set,
            Need.MTP: self.mtp,
            Need.PROBE: self.probe and self.open_draft,
            **self.open_heads,
        }
        return parts.get(need) is not None


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

    make: also gets the cores it may draft on while the target verifies; None: it must not.
    is_automatic: `auto` weighs it, too.
    """

    summary: str
    make: Callable[[DrafterParts, CoreSplit | None], ModelDrafter]
    need: Need | None = None
    is_automatic: bool = True
    is_free: ClassVar[bool] = False


Method = FreeMethod | ModelMethod


@cache
def drafter_names() -> tuple[str, ...]:
    """Returns the names `find_drafter` knows, sorted."""
    own = (module.name for module in pkgutil.iter_modules(__path__))
    return tuple(sorted((*own, *lab_names("drafters"))))


def find_drafter(name: str) -> Method:
    """Returns the method called ``name``, which must be one of `drafter_names`."""
    if name in lab_names("drafters"):
        found: Method = lab_module("drafters", name).METHOD
    else:
        found = importlib.import_module(f"{__name__}.{name}").METHOD
    return found
