"""Which modules ``adapter_config.json`` names, and which of its names no module of the model has.

Sources: huggingface/peft ``src/peft/tuners/tuners_utils.py`` ``check_target_module_exists`` and
``src/peft/utils/other.py`` ``get_pattern_key``, ``_set_trainable`` (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping

from edgedec.models.fields import Fields, shown
from edgedec.models.weights import Weight

ALL_LINEAR = "all-linear"
_LAYER = r".*?\.[^.]*\.(\d+)\."


def matches_pattern(pattern: str, module: str) -> bool:
    """Whether a key of ``rank_pattern`` or ``alpha_pattern`` is for ``module``."""
    return re.match(rf"(.*\.)?({pattern})$", module) is not None


def published_modules(weights: Mapping[str, Weight]) -> frozenset[str]:
    """Returns the published names of parameters, and of the modules that these are in."""
    parameters = {"lm_head"}
    for name in (name for weight in weights.values() for name in weight.hf.names):
        parameters.add(name)
        stem, experts, _ = name.partition(".experts.")
        if experts:  # as transformers 5 stacks them
            parameters |= {f"{stem}.experts.gate_up_proj", f"{stem}.experts.down_proj"}
    names = set[str]()
    for name in parameters:
        parts = name.split(".")
        names.update(".".join(parts[:n]) for n in range(1, len(parts) + 1))
    return frozenset(names)


def unapplied_names(
    fields: Fields, modules: Collection[str], adapted: Collection[str]
) -> Iterator[str]:
    """Yields a line for each name that PEFT ignores, and for adapted modules it would not adapt.

    modules: all of the model. adapted: those that the adapter has matrices for.
    """
    absent = "which no module of the model has"
    for key, matches in _MATCHES.items():
        value = fields.get(key)
        for name in [value] if isinstance(value, str) else _names(fields, key):
            if name != ALL_LINEAR and not any(matches(name, module) for module in modules):
                yield f"{fields.origin}: {key} names {shown(name)}, {absent}"
    for layer in _absent_layers(fields, modules):
        yield f"{fields.origin}: layers_to_transform names {layer}, {absent}"
    others = [module for module in adapted if not _is_target(fields, module)]
    if others:
        yield (
            f"{fields.origin}: {shown(others[0])}{_and_more(len(others) - 1)} is not among its "
            "target_modules, so that PEFT leaves it out; it is merged here"
        )


def _and_more(n: int) -> str:
    return f" (and {n} more)" if n else ""


def _is_end(name: str, module: str) -> bool:
    return f".{module}".endswith(f".{name}")


def _is_named_or_regular(name: str, module: str) -> bool:
    return _is_end(name, module) or _fullmatch(name, module)


def _fullmatch(pattern: str, module: str) -> bool:
    try:
        return re.fullmatch(pattern, module) is not None
    except re.error:
        return False


_MATCHES: dict[str, Callable[[str, str], bool]] = {
    "rank_pattern": matches_pattern,
    "alpha_pattern": matches_pattern,
    "target_modules": _is_named_or_regular,
    "exclude_modules": _is_named_or_regular,
    "modules_to_save": lambda name, module: module.endswith(name),
    "trainable_token_indices": _is_end,
    "layers_pattern": lambda name, module: re.match(
        rf"(?:^|.*?\.){re.escape(name)}\.\d+(\.|$)", module
    ) is not None,
}  # fmt: skip
"""How names of each key match the name of a module."""


def _names(fields: Fields, key: str) -> list[str]:
    """Returns the names that ``key`` lists, or has numbers for."""
    value = fields.get(key) or []
    return [name for name in value if isinstance(name, str)]


def _absent_layers(fields: Fields, modules: Collection[str]) -> list[int]:
    """Returns the layers to transform that the model does not have."""
    known = {int(match[1]) for module in modules if (match := re.match(_LAYER, f"{module}."))}
    return [layer for layer in _layers(fields) if layer not in known]


def _layers(fields: Fields) -> list[int]:
    value = fields.get("layers_to_transform")
    layers = value if isinstance(value, list) else [value]
    return [layer for layer in layers if isinstance(layer, int)]


def _is_target(fields: Fields, module: str) -> bool:
    """Whether PEFT adapts ``module`` by the configuration alone."""
    excluded, targets = fields.get("exclude_modules"), fields.get("target_modules")
    if isinstance(excluded, str):
        if _fullmatch(excluded, module):
            return False
    elif any(_is_end(name, module) for name in _names(fields, "exclude_modules")):
        return False
    if targets is None or isinstance(targets, str):
        return not targets or targets == ALL_LINEAR or _fullmatch(targets, module)
    names = _names(fields, "target_modules")
    if module in names:
        return True
    if not any(_is_end(name, module) for name in names):
        return False
    layers, patterns = _layers(fields), fields.get("layers_pattern") or []
    if not layers:
        return True
    patterns = [patterns] if isinstance(patterns, str) else _names(fields, "layers_pattern")
    expressions = [rf"(?:^|.*?\.){pattern}\.(\d+)\." for pattern in patterns] or [_LAYER]
    match = next((m for pattern in expressions if (m := re.match(pattern, module))), None)
    return match is not None and int(match[1]) in layers
