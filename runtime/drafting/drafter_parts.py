"""What drafters are made of, and what a method may need of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:  # imported by whom they are asked of, for they delay a first token
    from edgedec.runtime.drafting.draft_role import DraftRole
    from edgedec.runtime.drafting.head_role import HeadRole
    from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore


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
    MTP = (
        "a layer for drafting from the model's publisher, or light heads in the model's own graph: "
        "train these with edgedec train head --kind hydra",
        "edgedec train head --kind hydra",
    )
    DFLASH = (
        "a DFlash drafter: export the model again with --head and its publisher's folder",
        "--head",
    )
    PARD = (
        "a drafter of PARD 2: export the model again with --head and its publisher's folder",
        "--head",
    )
    EXIT = (
        "an early exit: export the model again with --exit, or train one with edgedec train exit",
        "--exit",
    )

    def __init__(self, advice: str, option: str) -> None:
        self.advice = advice
        self.option = option


class Role(Protocol):
    """A model beside the target model, opened."""

    def forget(self) -> None:
        """Empties the idle sequences."""

    def close(self) -> None:
        """Closes all sequences and releases the model."""


R = TypeVar("R", bound=Role)


class Shared(Generic[R]):
    """A model beside the target model, opened when first called; all callers share it."""

    def __init__(self, opens: Callable[[], R]) -> None:
        self._opens = opens
        self._role: R | None = None

    def __call__(self) -> R:
        if self._role is None:
            self._role = self._opens()
        return self._role

    def forget(self) -> None:
        """Empties the idle sequences, if it is open."""
        if self._role is not None:
            self._role.forget()

    def close(self) -> None:
        """Releases the model, if it is open."""
        role, self._role = self._role, None
        if role is not None:
            role.close()


@dataclass(frozen=True, eq=False)
class DrafterParts:
    """What drafters of one engine are made of.

    is_store_growing: whether texts are added to the store when they end.
    draft: the draft model, if there is one.
    heads: the draft head or that of early exits, by the need that it meets.
    mtp: kind of the light heads in the target model's graph, if it has some.
    """

    store: NgramStore | None = None
    is_store_growing: bool = True
    draft: Shared[DraftRole] | None = None
    heads: Mapping[Need, Shared[HeadRole]] = field(default_factory=dict)
    mtp: str | None = None

    def has(self, need: Need | None) -> bool:
        """Whether what a method needs is there."""
        if need is None:
            return True
        parts = {
            Need.STORE: self.store,
            Need.DRAFT_MODEL: self.draft,
            Need.MTP: self.mtp,
            **self.heads,
        }
        return parts.get(need) is not None

    @property
    def models(self) -> list[Shared[DraftRole] | Shared[HeadRole]]:
        """The models beside the target model."""
        return [*([] if self.draft is None else [self.draft]), *self.heads.values()]
