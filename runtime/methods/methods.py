"""Decoding methods by name, over the models of one engine; drafters are made when first asked for.

`plain`; `auto`, which weighs all drafters there are; or names of drafters joined by `+`. Those
that take no passes of a model are weighed as `auto` weighs them; a draft model proposes every round
within a fixed budget. If the request states a budget, all do.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SpeculationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.plain import Plain
from edgedec.runtime.decoding.strategy import DecodingStrategy
from edgedec.runtime.methods.method_parts import PLAIN, MethodParts

if TYPE_CHECKING:  # imported by whom they are asked of, for they delay a first token
    from edgedec.runtime.methods.drafting_methods import DraftingMethods


class Methods:
    """The methods of one engine. What a method's drafters learn outlives requests."""

    def __init__(self, parts: MethodParts, default: str = PLAIN) -> None:
        self.default = default
        self._parts = parts
        self._plain = Plain()
        self._drafting: DraftingMethods | None = None
        self._switching: dict[SwitchConfig, DecodingStrategy] = {}

    def of_request(self, request: GenerationConfig) -> DecodingStrategy:
        """Returns the method that ``request`` asks for; raises as `strategy` does."""
        if self._parts.masked is not None:
            from edgedec.runtime.methods.unmask_methods import unmasking

            return unmasking(self._parts.masked, request)
        if request.unmask is not None:
            raise ConfigError(
                "unmask is for models that fill masks in, and this one writes from left to right: "
                "leave it out"
            )
        request.speculation.check_context(self._parts.context)
        if request.switch is not None:
            return self._switch(request.switch)
        is_fixed = request.speculation != SpeculationConfig()
        return self.strategy(request.method, request.verifier, is_fixed)

    def strategy(
        self, method: str | None, verifier: str | None = None, is_fixed: bool = False
    ) -> DecodingStrategy:
        """Returns the method called ``method``, the engine's default when None.

        Args:
            is_fixed: A round drafts as much as the request states, whether or not that pays.

        Raises:
            ConfigError: There is no such method or verifier, or the bundle lacks what it needs.
        """
        name = method or self.default
        if name == PLAIN and verifier is None:
            return self._plain
        if self._drafting is None:
            from edgedec.runtime.methods.drafting_methods import DraftingMethods

            self._drafting = DraftingMethods(self._parts)
        return self._drafting.strategy(name, verifier, is_fixed)

    def forget(self) -> None:
        """Drops all drafters and with them what they learned; costs stay known."""
        for strategy in self._switching.values():
            strategy.close()
        self._switching.clear()
        if self._drafting is not None:
            self._drafting.forget()
        for model in self._parts.drafters.models:
            model.forget()

    def close(self) -> None:
        """Releases everything."""
        self.forget()
        for model in self._parts.drafters.models:
            model.close()

    def _switch(self, setting: SwitchConfig) -> DecodingStrategy:
        if setting not in self._switching:
            self._switching[setting] = self._make_switch(setting)
        return self._switching[setting]

    def _make_switch(self, setting: SwitchConfig) -> DecodingStrategy:
        """Returns switching between the target model and the draft model, as a whole one."""
        from edgedec.runtime.decoding.switching.pair import checked
        from edgedec.runtime.decoding.switching.switching import Switching
        from edgedec.runtime.decoding.switching.tuned import resolve

        pair = checked(self._parts.draft.pair if self._parts.draft else None)
        resolved = resolve(setting, self._parts.tuned, pair.fingerprint)
        assert self._parts.drafters.draft is not None
        return Switching(self._parts.drafters.draft(), resolved, size_ratio=pair.size_ratio)


def identity_of(*facts: object) -> str:
    """Returns a short name of what ``facts`` (JSON-ready) describe."""
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
