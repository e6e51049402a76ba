"""Which provider of ONNX Runtime a model runs on."""

from __future__ import annotations

from dataclasses import replace

import onnxruntime

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.targets.providers import PROVIDERS, Provider, find_provider


def on_provider(entry: ModelEntry, name: str, must_run: bool = True) -> ModelEntry:
    """Returns ``entry`` for the provider called ``name``.

    must_run: whether a graph that runs on other providers only is refused; else it stays there.

    Raises:
        ConfigError: There is no such provider, its graph runs on others only, or this installation
            of ONNX Runtime lacks it.
    """
    provider = find_provider(name)
    if provider.ort_name not in entry.contract.providers and not must_run:
        return entry
    if provider.ort_name not in entry.contract.providers:
        raise ConfigError(
            f"provider is {name}, but this bundle's graph, of the compiler "
            f"{entry.contract.compiler}, runs on {_names(entry.contract.providers)}: export the "
            "model with --target ort"
        )
    if provider not in available_providers():
        here = ", ".join(found.name for found in available_providers())
        raise ConfigError(
            f"provider {name} is not part of the ONNX Runtime installed here, which has {here}; "
            f"known: {', '.join(PROVIDERS)}: {provider.install}"
        )
    return replace(entry, contract=replace(entry.contract, providers=(provider.ort_name,)))


def available_providers() -> tuple[Provider, ...]:
    """Returns the providers that this installation of ONNX Runtime has, the CPU first."""
    here = onnxruntime.get_available_providers()
    return tuple(provider for provider in PROVIDERS.values() if provider.ort_name in here)


def _names(ort_names: tuple[str, ...]) -> str:
    known = [p.name for p in PROVIDERS.values() if p.ort_name in ort_names]
    return ", ".join(known) or "no provider of ONNX Runtime"
