"""Which processors each of two models gets, and whether they may compute at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.drafting.core_split import CoreSplit
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.system.processors import one_processor_per_core

if TYPE_CHECKING:
    from edgedec.runtime.methods.draft_source import DraftSource

AUTO, ON, OFF = MODES = ("auto", "on", "off")

_AUTO_CORES = 4
"""With fewer, what a draft model takes from the target model is more than it can give back."""

_ON_PROCESSORS = ("CPUExecutionProvider", "CPU")
"""Providers and devices that compute on this machine's processors."""

_DRAFT_SHARE = 4
"""One core in so many drafts: the target model's pass is the longer one, and waits for memory."""


def split_cores(
    mode: str, affinity: Affinity, threads: int, target: ModelEntry, draft: DraftSource | None
) -> CoreSplit:
    """Returns the cores of the two models under ``mode``: auto, on, or off.

    Args:
        affinity: Where threads stay; one processor of each physical core when it says nothing.
        threads: Of the target model; no more cores than that are divided.
        draft: The draft model, if there is one.

    Raises:
        ConfigError: There is no such mode, or it is ``on`` where that is impossible.
    """
    if mode not in MODES:
        raise ConfigError(f"overlap is {mode!r}, expected {', '.join(MODES)}")
    if mode == OFF:
        return CoreSplit()
    cores = list(affinity.processors or one_processor_per_core())[:threads]
    obstacle = _obstacle(cores, target, draft)
    if mode == ON and obstacle:
        raise ConfigError(f"overlap is on, but {obstacle}")
    is_measured = mode == AUTO
    if not obstacle and draft is not None and _is_elsewhere(target, draft.entry):
        return CoreSplit(target=affinity, is_measured=is_measured, reason="")
    if obstacle or (is_measured and len(cores) < _AUTO_CORES):
        reason = (
            obstacle or f"{len(cores)} cores to divide, and fewer than {_AUTO_CORES} do not pay"
        )
        return CoreSplit(reason=reason)
    n_draft = max(1, len(cores) // _DRAFT_SHARE)
    return CoreSplit(
        target=Affinity(tuple(cores[:-n_draft])),
        draft=Affinity(tuple(cores[-n_draft:])),
        is_measured=is_measured,
        reason="",
    )


def at_home(draft: DraftSource, split: CoreSplit) -> DraftSource:
    """Returns the draft model on the cores that overlap gives it, if it cannot change them."""
    if _is_movable(draft.entry) or not split.draft.processors:
        return draft
    return replace(draft, affinity=split.draft, threads=len(split.draft.processors))


def _is_movable(entry: ModelEntry) -> bool:
    """Says whether a model changes processors: its KV cache belongs to no one session."""
    return entry.contract.kv.kind == "panels"


def _is_elsewhere(target: ModelEntry, draft: ModelEntry) -> bool:
    """Says whether one of two models computes on no processor of this machine."""
    firsts = [entry.contract.providers[:1] for entry in (target, draft)]
    return any(first and first[0] not in _ON_PROCESSORS for first in firsts)


def _obstacle(cores: Sequence[int], target: ModelEntry, draft: DraftSource | None) -> str:
    """Returns why two models cannot compute at the same time; empty if they can."""
    if draft is None:
        return "there is no draft model: export the bundle with --draft, or name one with --draft"
    if _is_elsewhere(target, draft.entry):
        return ""
    if not _is_movable(target):
        return (
            f"the target model has a KV cache of the kind {target.contract.kv.kind}, and only "
            "models with panels change processors: export it with --target cpu"
        )
    if len(cores) < 2:
        return "there is only one core to divide: allow more threads or processors"
    return ""
