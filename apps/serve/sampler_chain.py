"""Which samplers work, in which order and on how many tokens, as clients of llama.cpp say it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edgedec.apps.serve.core import invalid
from edgedec.runtime.config.sampling import GREEDY_BELOW, SamplingConfig

_OFF: dict[str, dict[str, float]] = {
    "penalties": {
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0,
    },
    "dry": {"dry_multiplier": 0.0},
    "temperature": {"temperature": 1.0},
    "top_n_sigma": {"top_n_sigma": 0.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
}  # fmt: skip
"""The samplers in the order in which they work here, and what turns each off."""

_EDITS = ("penalties", "dry")
_SCALE_FREE = ("top_n_sigma", "top_k")
"""Truncations that keep the same tokens before and behind the temperature."""

_LETTERS = dict(zip("edtskypmxi", [*_OFF, "infill"], strict=True))

_OTHER_NAMES = {
    "temp": "temperature", "typical": "typ_p", "typical_p": "typ_p", "typ": "typ_p",
    "nucleus": "top_p",
}  # fmt: skip


@dataclass(frozen=True)
class SamplerChain:
    """What a client states of it; None where it states nothing.

    samplers: names in their order, or one letter for each.
    repeat_last_n, dry_penalty_last_n: tokens that count; -1 is all, 0 turns the penalty off.
    penalize_nl: line ends count as well.
    may_infill: the sampler for what is missing may be named. It decides how random a text is;
        here the temperature does.
    """

    samplers: str | Sequence[str] | None = None
    repeat_last_n: int | None = None
    dry_penalty_last_n: int | None = None
    penalize_nl: bool | None = None
    may_infill: bool = False

    def applied(self, config: SamplingConfig, n_most: int) -> SamplingConfig:
        """Returns ``config`` without the samplers that the client leaves out.

        n_most: tokens of the prompt and the longest answer.

        Raises:
            ServeError: An order, or a number of tokens, gives other texts than those here.
        """
        if config.mirostat:  # it takes the place of the chain
            return config
        if self.samplers is not None:
            config = self._chosen(config)
        config = _within(config, "penalties", "repeat_last_n", self.repeat_last_n, n_most)
        config = _within(config, "dry", "dry_penalty_last_n", self.dry_penalty_last_n, n_most)
        if self.penalize_nl is False and _is_on(config, "penalties"):
            message = "penalize_nl is false, but penalties count line ends, too: leave it out"
            raise invalid(message, param="penalize_nl")
        return config

    def _chosen(self, config: SamplingConfig) -> SamplingConfig:
        names = self._names()
        for name, off in _OFF.items():
            is_replaced = name == "temperature" and "infill" in names
            if name not in names and not is_replaced:
                config = _changed(config, off)
        working = _working(config)
        samplers = [name for name in names if name in working]
        expected = [name for name in working if name in samplers]
        is_last = _has_temperature_last(samplers)
        if is_last:
            expected = [*_without(expected, ("temperature",)), "temperature"]
        for free in (("temperature",), _SCALE_FREE):
            if _without(samplers, free) != _without(expected, free):
                message = (
                    f"samplers has the order {', '.join(samplers)}, expected "
                    f"{', '.join(expected)}: leave it out, or turn one of them off"
                )
                raise invalid(message, param="samplers")
        return replace(config, temperature_last=is_last)

    def _names(self) -> list[str]:
        listed = self.samplers or ()
        if isinstance(listed, str) and ";" in listed:
            listed = listed.split(";")
        names = [_LETTERS.get(name, name) for name in listed]
        names = [name.replace("-", "_") for name in names]
        names = [_OTHER_NAMES.get(name, name) for name in names]
        known = [*_OFF, *(["infill"] if self.may_infill else [])]
        if odd := [name for name in names if name not in known]:
            message = f"samplers has {odd[0][:40]!r}, expected {', '.join(known)}"
            raise invalid(message, param="samplers")
        return names


def _within(
    config: SamplingConfig, kind: str, name: str, n: int | None, n_most: int
) -> SamplingConfig:
    """Returns ``config`` where the last ``n`` tokens count. name: of the field.

    Raises:
        ServeError: That is not all of them.
    """
    if n is None or n < 0 or n >= n_most or not _is_on(config, kind):
        return config
    if n > 0:
        message = f"{name} is {n}, but all of the text counts here: expected -1, or 0 for none"
        raise invalid(message, param=name)
    return _changed(config, _OFF[kind])


def _working(config: SamplingConfig) -> list[str]:
    """Returns the samplers that change a text; greedy decoding looks at penalties alone."""
    names = [name for name in _OFF if _is_on(config, name)]
    is_greedy = config.temperature < GREEDY_BELOW
    return [name for name in names if name in _EDITS] if is_greedy else names


def _has_temperature_last(samplers: Sequence[str]) -> bool:
    """Whether the temperature comes behind a truncation that depends on it."""
    before = samplers[: samplers.index("temperature")] if "temperature" in samplers else ()
    return bool(_without(before, (*_EDITS, *_SCALE_FREE)))


def _without(names: Sequence[str], left_out: Sequence[str]) -> list[str]:
    return [name for name in names if name not in left_out]


def _is_on(config: SamplingConfig, kind: str) -> bool:
    return any(getattr(config, name) != value for name, value in _OFF[kind].items())


def _changed(config: SamplingConfig, fields: dict[str, Any]) -> SamplingConfig:
    return replace(config, **fields)
