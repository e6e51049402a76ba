"""Decoding methods by name, over the models of one engine; drafters are made when first asked for.

`plain`; `auto`, which weighs all drafters there are; or names of drafters joined by `+`, which
then propose every round within a fixed budget.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import ADADEC, SwitchConfig
from edgedec.runtime.cores.core_split import CoreSplit
from edgedec.runtime.decoding.controller import Controller
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.decoding.verifiers import (
    DEFAULT_VERIFIER,
    Verifier,
    find_verifier,
    kind_for,
)
from edgedec.runtime.drafters import (
    DrafterParts,
    FreeMethod,
    ModelMethod,
    drafter_names,
    find_drafter,
)
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.draft_tree import SiblingKind
from edgedec.runtime.drafting.drafter import Budget, Drafter, ModelDrafter
from edgedec.runtime.drafting.skip_set import SkipSet
from edgedec.runtime.methods.draft_source import DraftSource
from edgedec.runtime.ngrams.ngram_store import NgramStore

if TYPE_CHECKING:  # imported by whom they are asked of, for they delay a first token
    from edgedec.runtime.switching.adadec import AdaDec
    from edgedec.runtime.switching.switching import Switching

PLAIN, AUTO, DRAFT = "plain", "auto", "draft"

_FIXED = Budget(n_nodes=7, depth=7, min_value=0.02)
_FIXED_MODEL = Budget(n_nodes=7, depth=4, min_value=0.02, min_step_value=0.25, n_step_nodes=2)


def method_names() -> tuple[str, ...]:
    """Returns the names of all methods; those after the first two can be joined by +."""
    return (PLAIN, AUTO, *drafter_names())


@dataclass(frozen=True)
class MethodParts:
    """What methods are made of.

    context: positions of a text. hidden_layers: layers whose hidden states the target can return.
    identity: names models, device and threads; costs measured for one are not used for another.
    tuned: what the bundle says of switching. split: whether the draft model goes on while the
    target model verifies, and where. skip_set: what the target model may leave out while it drafts.
    """

    context: int
    hidden_layers: Sequence[int] = ()
    draft: DraftSource | None = None
    identity: str = ""
    store: NgramStore | None = None
    is_store_growing: bool = True
    tuned: Any = None
    split: CoreSplit = field(default_factory=CoreSplit)
    skip_set: SkipSet | None = None


class Methods:
    """The methods of one engine. What a method's drafters learn outlives requests."""

    def __init__(self, parts: MethodParts, default: str = PLAIN) -> None:
        self.default = default
        self._parts = parts
        self._made: dict[tuple[str, str], DecodingStrategy] = {}
        self._costs = CostBook(parts.identity)
        self._free: dict[str, Drafter] = {}
        self._models: dict[tuple[str, bool], ModelDrafter] = {}  # by name, with overlap or not
        self._switching: dict[SwitchConfig, Switching | AdaDec] = {}
        self._role: DraftRole | None = None
        open_draft: Callable[[], DraftRole] | None = None if parts.draft is None else self._open
        self._drafter_parts = DrafterParts(
            parts.store, parts.is_store_growing, open_draft, parts.skip_set
        )

    def of_request(self, request: GenerationConfig) -> DecodingStrategy:
        """Returns the method that ``request`` asks for; raises as `strategy` does."""
        request.speculation.check_context(self._parts.context)
        if request.switch is not None:
            return self._switch(request.switch)
        return self.strategy(request.method, request.verifier)

    def strategy(self, method: str | None, verifier: str | None = None) -> DecodingStrategy:
        """Returns the method called ``method``, the engine's default when None.

        Raises:
            ConfigError: There is no such method or verifier, or the bundle lacks what it needs.
        """
        name = method or self.default
        judge = find_verifier(verifier)
        key = (name, judge.name)
        if key not in self._made:
            self._made[key] = self._make(name, judge)
        return self._made[key]

    def forget(self) -> None:
        """Drops all drafters and with them what they learned; costs stay known."""
        for strategy in (*self._made.values(), *self._switching.values()):
            strategy.close()
        for made in (self._made, self._switching, self._free, self._models):
            made.clear()
        if self._role is not None:
            self._role.pool.forget()

    def close(self) -> None:
        """Releases everything."""
        self.forget()
        if self._role is not None:
            self._role.close()
            self._role = None

    def _make(self, name: str, verifier: Verifier) -> DecodingStrategy:
        if name == PLAIN:
            return Plain()
        if kind_for(verifier) is SiblingKind.INDEPENDENT and name != DRAFT:
            raise ConfigError(
                f"the {verifier.name} verifier judges nothing but what a draft model draws, and "
                f"method {name} drafts otherwise: use method draft, or another verifier"
            )
        free, models = self._chosen(name)
        why_not = self._why_no_overlap(verifier) if DRAFT in models else ""
        drafters = [self._free_drafter(n) for n in free]
        model = self._model_drafter(models[0], not why_not) if models else None
        self._check_hidden_layers([*drafters, *([model] if model else [])])
        if name == AUTO:
            draft = self._parts.draft
            role = f"draft-{draft.fingerprint[:12]}" if draft else ""
            return Speculative(Controller(drafters, self._costs, model, role), verifier, why_not)
        budget = _FIXED if model is None else _FIXED_MODEL
        return Speculative(FixedPlanner(drafters, budget, name, model), verifier, why_not)

    def _chosen(self, name: str) -> tuple[list[str], list[str]]:
        """Returns the free drafters and those with a model that a method has."""
        known = {n: find_drafter(n) for n in drafter_names()}
        if name == AUTO:
            chosen = [n for n, found in known.items() if self._drafter_parts.has(found.need)]
        else:
            chosen = list(dict.fromkeys(name.split("+")))
        for n in chosen:
            if n not in known:
                raise ConfigError(
                    f"unknown method {name!r}, expected {PLAIN}, {AUTO}, or some of "
                    f"{', '.join(known)} joined by +"
                )
            if (need := known[n].need) is not None and not self._drafter_parts.has(need):
                raise ConfigError(f"method {n} needs {need.advice}")
        models = [n for n in chosen if not known[n].is_free]
        if name == AUTO:
            spare = {
                n for n, found in known.items() if isinstance(found, ModelMethod) and found.is_spare
            }
            models = sorted(models, key=lambda n: n in spare)[:1]
        if len(models) > 1:
            raise ConfigError(f"{' and '.join(models)} both draft with a model: choose one")
        return [n for n in chosen if known[n].is_free], models

    def _free_drafter(self, name: str) -> Drafter:
        if name not in self._free:
            method = find_drafter(name)
            assert isinstance(method, FreeMethod)
            self._free[name] = method.make(self._drafter_parts)
        return self._free[name]

    def _model_drafter(self, name: str, is_overlapped: bool) -> ModelDrafter:
        key = name, is_overlapped
        if key not in self._models:
            method = find_drafter(name)
            assert not isinstance(method, FreeMethod)
            split = self._parts.split if is_overlapped else None
            self._models[key] = method.make(self._drafter_parts, split)
        return self._models[key]

    def _check_hidden_layers(self, drafters: Sequence[Drafter | ModelDrafter]) -> None:
        for drafter in drafters:
            if missing := sorted(set(drafter.hidden_layers) - set(self._parts.hidden_layers)):
                raise ConfigError(
                    f"method {drafter.name} needs the hidden states of layer {missing[0]}, which "
                    "this bundle's graph does not return: export it again with --hidden-layers "
                    f"{','.join(map(str, drafter.hidden_layers))}"
                )

    def _why_no_overlap(self, verifier: Verifier) -> str:
        if verifier is not DEFAULT_VERIFIER:
            return f"for with the verifier {verifier.name} the text depends on what is drafted"
        return self._parts.split.reason

    def _switch(self, setting: SwitchConfig) -> Switching | AdaDec:
        if setting not in self._switching:
            self._switching[setting] = self._make_switch(setting)
        return self._switching[setting]

    def _make_switch(self, setting: SwitchConfig) -> Switching | AdaDec:
        """Returns switching between the target model and the draft model, as a whole one."""
        from edgedec.runtime.switching.adadec import AdaDec
        from edgedec.runtime.switching.pair import checked
        from edgedec.runtime.switching.switching import Switching
        from edgedec.runtime.switching.tuned import resolve

        if setting.policy == ADADEC:
            return AdaDec(resolve(setting, self._parts.tuned, None))
        pair = checked(self._parts.draft.pair if self._parts.draft else None)
        resolved = resolve(setting, self._parts.tuned, pair.fingerprint)
        return Switching(self._open(), resolved, size_ratio=pair.size_ratio)

    def _open(self) -> DraftRole:
        """Returns the draft model, the same one for whoever asks."""
        if self._role is None:
            assert self._parts.draft is not None
            self._role = self._parts.draft.open()
        return self._role


def identity_of(*facts: object) -> str:
    """Returns a short name of what ``facts`` (JSON-ready) describe."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
