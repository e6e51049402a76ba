"""Which processors the target and the draft model have while both compute at the same time."""

from __future__ import annotations

from dataclasses import dataclass, field

from edgedec.runtime.sequences.affinity import Affinity


@dataclass(frozen=True)
class CoreSplit:
    """Whether drafting goes on while the target model verifies, and who has which processors.

    is_measured: overlap ends when it does not pay. reason: why there is none; empty if there is.
    """

    target: Affinity = field(default_factory=Affinity)
    draft: Affinity = field(default_factory=Affinity)
    is_measured: bool = False
    reason: str = "not asked for"

    @property
    def is_on(self) -> bool:
        """Target and draft model have processors of their own."""
        return not self.reason
