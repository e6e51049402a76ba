"""The methods that draft: `auto`, and names of drafters joined by `+`."""

from __future__ import annotations

from collections.abc import Sequence

from edgedec.models.errors import ConfigError
from edgedec.runtime.decoding.auto_planner import MTP, AutoPlanner
from edgedec.runtime.decoding.cost_book import CostBook
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.planner import FixedPlanner, Planner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.decoding.verifiers import DEFAULT_VERIFIER, Verifier, find_verifier
from edgedec.runtime.drafting.drafter import Budget, Drafter, ModelDrafter
from edgedec.runtime.drafting.drafters import FreeMethod, Method, drafter_names, find_drafter
from edgedec.runtime.methods.method_parts import AUTO, DRAFT, PLAIN, MethodParts

_FIXED = Budget(n_nodes=7, depth=7, min_value=0.02)
_FIXED_MODEL = Budget(n_nodes=7, depth=4, min_value=0.02, min_step_value=0.25, n_step_nodes=2)


class DraftingMethods:
    """The methods of one engine under a verifier; drafters are made when first asked for."""

    def __init__(self, parts: MethodParts) -> None:
        self._parts = parts
        self._made: dict[tuple[str, str, bool], DecodingStrategy] = {}
        shares = {} if parts.draft is None else {parts.draft.role: parts.draft.cost}
        if parts.head is not None:
            shares[parts.head.role] = parts.head.cost
        self._costs = CostBook(parts.identity, shares)
        self._free: dict[str, Drafter] = {}
        self._models: dict[str, ModelDrafter] = {}

    def strategy(self, name: str, verifier: str | None, is_fixed: bool) -> DecodingStrategy:
        """Returns the method called ``name`` under ``verifier``, the default one when None.

        Args:
            is_fixed: See `Methods.strategy`; `auto` always weighs what pays.

        Raises:
            ConfigError: There is no such method or verifier, or the bundle lacks what it needs.
        """
        judge = find_verifier(verifier)
        key = (name, judge.name, is_fixed)
        if key not in self._made:
            self._made[key] = self._make(name, judge, is_fixed)
        return self._made[key]

    def forget(self) -> None:
        """Drops all drafters and with them what they learned; costs stay known."""
        for strategy in self._made.values():
            strategy.close()
        for made in (self._made, self._free, self._models):
            made.clear()

    def _make(self, name: str, verifier: Verifier, is_fixed: bool) -> DecodingStrategy:
        if name == PLAIN:
            return Plain()
        free, models = self._chosen(name)
        drafters = [self._free_drafter(n) for n in free]
        with_model = {n: self._model_drafter(n) for n in models}
        self._check_hidden_layers([*drafters, *with_model.values()])
        # Under a lossy verifier the text depends on what is drafted: it shall not depend on time.
        is_weighed = not models and not is_fixed and verifier is DEFAULT_VERIFIER
        if name == AUTO or is_weighed:
            head = self._parts.head
            by_role = {self._role_of(n): drafter for n, drafter in with_model.items()}
            share = 0.0 if head is None or MTP not in free else head.cost
            planner: Planner = AutoPlanner(drafters, self._costs, by_role, share, name)
            return Speculative(planner, verifier, MTP in free)
        model = next(iter(with_model.values()), None)
        budget = _FIXED if model is None else _FIXED_MODEL
        planner = FixedPlanner(drafters, budget, name, model, self._costs)
        return Speculative(planner, verifier, MTP in free)

    def _role_of(self, name: str) -> str:
        """Returns what the costs of the model of drafter ``name`` are kept under."""
        draft, head = self._parts.draft, self._parts.head
        if head is not None and self._find(name).need is head.need:
            return head.role
        return draft.role if name == DRAFT and draft else name

    def _chosen(self, name: str) -> tuple[list[str], list[str]]:
        """Returns the free drafters and those with a model that a method has."""
        known = {n: self._find(n) for n in drafter_names()}
        if name == AUTO:
            chosen = [
                n
                for n, method in known.items()
                if method.is_automatic and self._parts.drafters.has(method.need)
            ]
        else:
            chosen = list(dict.fromkeys(name.split("+")))
        for n in chosen:
            if n not in known:
                raise ConfigError(
                    f"unknown method {name!r}, expected {PLAIN}, {AUTO}, or some of "
                    f"{', '.join(known)} joined by +"
                )
            if (need := known[n].need) is not None and not self._parts.drafters.has(need):
                raise ConfigError(f"method {n} needs {need.advice}")
        models = [n for n in chosen if not known[n].is_free]
        if len(models) > 1 and name != AUTO:
            raise ConfigError(f"{' and '.join(models)} both draft with a model: choose one")
        return [n for n in chosen if known[n].is_free], models

    def _find(self, name: str) -> Method:
        return find_drafter(name, self._parts.drafters)

    def _free_drafter(self, name: str) -> Drafter:
        if name not in self._free:
            method = self._find(name)
            assert isinstance(method, FreeMethod)
            self._free[name] = method.make(self._parts.drafters)
        return self._free[name]

    def _model_drafter(self, name: str) -> ModelDrafter:
        if name not in self._models:
            method = self._find(name)
            assert not isinstance(method, FreeMethod)
            self._models[name] = method.make(self._parts.drafters)
        return self._models[name]

    def _check_hidden_layers(self, drafters: Sequence[Drafter | ModelDrafter]) -> None:
        for drafter in drafters:
            if missing := sorted(set(drafter.hidden_layers) - set(self._parts.hidden_layers)):
                raise ConfigError(
                    f"method {drafter.name} needs the hidden states of layer {missing[0]}, which "
                    "this bundle's graph does not return: export it again with --hidden-layers "
                    f"{','.join(map(str, drafter.hidden_layers))}"
                )
