"""Decoding methods by name, over the models of one engine; drafters are made when first asked for.

`plain`; `auto`, which weighs all drafters there are; or names of drafters joined by `+`, which
then propose every round within a fixed budget.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import platformdirs

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import ADADEC, SwitchConfig
from edgedec.runtime.cores.core_split import CoreSplit
from edgedec.runtime.decoding.controller import Controller
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.decoding.verifiers import DEFAULT_VERIFIER, VERIFIERS, Verifier
from edgedec.runtime.drafters.grammar import GrammarDrafter
from edgedec.runtime.drafters.lookup import PromptLookup
from edgedec.runtime.drafters.recycling import TokenRecycling
from edgedec.runtime.drafters.trigram import Trigrams
from edgedec.runtime.drafting.draft_tree import SiblingKind
from edgedec.runtime.drafting.drafter import Budget, Drafter
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.sessions.session import ModelSession

if TYPE_CHECKING:  # imported by whom they are asked of, for they delay a first token
    from edgedec.runtime.drafters.draft.overlapped import OverlappedDrafter
    from edgedec.runtime.switching.adadec import AdaDec
    from edgedec.runtime.switching.switching import Switching

PLAIN, AUTO, DRAFT, STORE = "plain", "auto", "draft", "store"
FREE: dict[str, Callable[[], Drafter]] = {
    "lookup": PromptLookup,
    "recycling": TokenRecycling,
    "trigram": Trigrams,
    "grammar": GrammarDrafter,
}
"""Drafters that need nothing but the text, and the grammar it follows."""

NAMES = (PLAIN, AUTO, DRAFT, *FREE, STORE)

_DRAWN = {"rejection": SiblingKind.WITHOUT_REPLACEMENT}
"""Verifiers that accept more when siblings are drawn than when they are chosen."""

_FIXED = Budget(n_nodes=7, depth=7, min_value=0.02)
_FIXED_MODEL = Budget(n_nodes=7, depth=4, min_value=0.02, min_step_value=0.25, n_step_nodes=2)


@dataclass(frozen=True)
class MethodParts:
    """What methods are made of.

    identity: names models, device and threads; costs measured for one are not used for another.
    store: opens the n-gram store, if there is one. tuned: what the bundle says of switching.
    split: whether the draft model goes on while the target model verifies, and where.
    """

    session: ModelSession
    draft: DraftSource | None = None
    identity: str = ""
    store: Callable[[], Drafter] | None = None
    tuned: Any = None
    split: CoreSplit = field(default_factory=CoreSplit)


class Methods:
    """The methods of one engine. What a method's drafters learn outlives requests."""

    def __init__(self, parts: MethodParts, default: str = PLAIN) -> None:
        self.default = default
        self._parts = parts
        self._made: dict[tuple[str, str], DecodingStrategy] = {}
        self._costs: dict[str, CostTable] = {}
        self._models: dict[SiblingKind, Drafter] = {}
        self._switching: dict[SwitchConfig, Switching | AdaDec] = {}

    def of_request(self, request: GenerationConfig) -> DecodingStrategy:
        """Returns the method that ``request`` asks for; raises as `strategy` does."""
        request.speculation.check_context(self._parts.session.context)
        if request.switch is not None:
            return self._switch(request.switch)
        return self.strategy(request.method, request.verifier)

    def strategy(self, method: str | None, verifier: str | None = None) -> DecodingStrategy:
        """Returns the method called ``method``, the engine's default when None.

        Raises:
            ConfigError: There is no such method or verifier, or the bundle lacks what it needs.
        """
        name = method or self.default
        judge = _find_verifier(verifier)
        key = (name, judge.name)
        if key not in self._made:
            self._made[key] = self._make(name, judge)
        return self._made[key]

    def forget(self) -> None:
        """Drops all drafters and with them what they learned; costs stay known."""
        for strategy in (*self._made.values(), *self._switching.values()):
            strategy.close()
        self._made.clear()
        self._switching.clear()
        self._models.clear()

    def close(self) -> None:
        """Releases everything."""
        self.forget()

    def _make(self, name: str, verifier: Verifier) -> DecodingStrategy:
        if name == PLAIN:
            return Plain()
        kind = _kind_for(verifier)
        if kind is SiblingKind.INDEPENDENT and name != DRAFT:
            raise ConfigError(
                f"the {verifier.name} verifier judges nothing but what a draft model draws, and "
                f"method {name} drafts otherwise: use method draft, or another verifier"
            )
        names = name.split("+")
        has_model = DRAFT in names or (name == AUTO and self._parts.draft is not None)
        why_not = self._why_no_overlap(verifier) if has_model else ""
        overlap = self._overlapped(kind) if has_model and not why_not else None
        if name == AUTO:
            return Speculative(self._controller(overlap), verifier, overlap, why_not)
        drafters = [overlap if overlap and n == DRAFT else self._drafter(n, kind) for n in names]
        budget = _FIXED_MODEL if any(not drafter.is_free for drafter in drafters) else _FIXED
        return Speculative(FixedPlanner(drafters, budget, name), verifier, overlap, why_not)

    def _why_no_overlap(self, verifier: Verifier) -> str:
        if verifier is not DEFAULT_VERIFIER:
            return f"for with the verifier {verifier.name} the text depends on what is drafted"
        return self._parts.split.reason

    def _overlapped(self, kind: SiblingKind) -> OverlappedDrafter:
        from edgedec.runtime.drafters.draft.draft_model import DraftModelDrafter
        from edgedec.runtime.drafters.draft.overlapped import OverlappedDrafter

        model = self._drafter(DRAFT, kind)
        assert isinstance(model, DraftModelDrafter)
        return OverlappedDrafter(model, self._parts.session, self._parts.split)

    def _switch(self, setting: SwitchConfig) -> Switching | AdaDec:
        if setting not in self._switching:
            self._switching[setting] = self._make_switch(setting)
        return self._switching[setting]

    def _make_switch(self, setting: SwitchConfig) -> Switching | AdaDec:
        """Returns switching between the target model and the draft model, as a whole one."""
        from edgedec.runtime.drafters.draft.draft_model import DraftModelDrafter
        from edgedec.runtime.switching.adadec import AdaDec
        from edgedec.runtime.switching.pair import checked
        from edgedec.runtime.switching.switching import Switching
        from edgedec.runtime.switching.tuned import resolve

        if setting.policy == ADADEC:
            return AdaDec(resolve(setting, self._parts.tuned, None))
        pair = checked(self._parts.draft.pair if self._parts.draft else None)
        resolved = resolve(setting, self._parts.tuned, pair.fingerprint)
        drafter = self._drafter(DRAFT)
        assert isinstance(drafter, DraftModelDrafter)
        return Switching(
            drafter.session, resolved, size_ratio=pair.size_ratio, recall=drafter.begin
        )

    def _controller(self, overlap: OverlappedDrafter | None = None) -> Controller:
        free = [self._drafter(name) for name in FREE]
        if self._parts.store is not None:
            free.append(self._drafter(STORE))

        def target_costs() -> CostTable:
            return self._measured("target", self._parts.session)

        if self._parts.draft is None:
            return Controller(free, target_costs)
        from edgedec.runtime.drafters.draft.draft_model import DraftModelDrafter

        model = self._drafter(DRAFT)
        assert isinstance(model, DraftModelDrafter)
        session, role = model.session, f"draft-{self._parts.draft.fingerprint[:12]}"
        return Controller(
            free, target_costs, overlap or model, lambda: self._measured(role, session)
        )

    def _drafter(self, name: str, kind: SiblingKind = SiblingKind.DETERMINISTIC) -> Drafter:
        """Returns a drafter; only the draft model, which is large, is shared by methods."""
        if name != DRAFT:
            return self._make_drafter(name, kind)
        if kind not in self._models:
            self._models[kind] = self._make_drafter(name, kind)
        return self._models[kind]

    def _make_drafter(self, name: str, kind: SiblingKind) -> Drafter:
        if name == DRAFT:
            if self._parts.draft is None:
                raise ConfigError(
                    "method draft needs a draft model: export the bundle with --draft, or name "
                    "another bundle to draft with"
                )
            return self._parts.draft.open(kind)
        if name == STORE:
            if self._parts.store is None:
                raise ConfigError(
                    "method store needs an n-gram store: name its file (--store FILE, or store=... "
                    "of load)"
                )
            return self._parts.store()
        if name not in FREE:
            raise ConfigError(
                f"unknown method {name!r}, expected {', '.join(NAMES[:2])}, or some of "
                f"{', '.join(NAMES[2:])} joined by +"
            )
        return FREE[name]()

    def _measured(self, role: str, session: ModelSession) -> CostTable:
        """Returns the costs of ``session``'s passes; the first few runs measure them."""
        if role not in self._costs:
            path = _cost_file(self._parts.identity, role)
            known = CostTable.load(path, self._parts.identity) if path else None
            if known is not None and known.is_settled:
                self._costs[role] = known
                return known
            table = CostTable.measure(session, anchor=0)
            table = table.merged(known) if known else table
            if path:
                table.save(path, self._parts.identity)
            self._costs[role] = table
        return self._costs[role]


def identity_of(*facts: object) -> str:
    """Returns a short name of what ``facts`` (JSON-ready) describe."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _cost_file(identity: str, role: str) -> Path | None:
    if not identity:
        return None
    return Path(platformdirs.user_cache_dir("edgedec")) / "costs" / f"{identity}-{role}.json"


def _find_verifier(name: str | None) -> Verifier:
    if name is None:
        return DEFAULT_VERIFIER
    if name not in VERIFIERS:
        raise ConfigError(f"unknown verifier {name!r}, expected one of {', '.join(VERIFIERS)}")
    return VERIFIERS[name]


def _kind_for(verifier: Verifier) -> SiblingKind:
    """Returns how a draft model should choose siblings for ``verifier``."""
    if SiblingKind.DETERMINISTIC not in verifier.kinds:
        return SiblingKind.INDEPENDENT
    return _DRAWN.get(verifier.name, SiblingKind.DETERMINISTIC)
