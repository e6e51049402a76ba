"""Where a model computes: on a provider of ONNX Runtime, or a device of OpenVINO."""

from __future__ import annotations

from dataclasses import replace

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.opening.options import EngineOptions
from edgedec.targets import place_needs, place_target, target_module
from edgedec.targets.device_target import PlaceOption


def on_device(
    entry: ModelEntry, provider: str | None, device: str | None, must_run: bool = True
) -> ModelEntry:
    """Returns ``entry`` for what is named, which it is as it is for None.

    must_run: whether a graph that does not run there is refused; else it stays where it is.

    Raises:
        ConfigError: There is no such provider or device, or the graph does not run there.
    """
    if provider is not None:
        entry = _on_place(entry, "provider", provider, must_run)
    if device is not None:
        entry = _on_place(entry, "device", device, must_run)
    return entry


def draft_on_device(entry: ModelEntry, options: EngineOptions) -> ModelEntry:
    """Returns the draft model ``entry`` where ``options`` put it.

    What they name for it alone it has to run on; else it is where the target model is, if it can.

    Raises:
        ConfigError: There is no such provider or device, or its graph does not run there.
    """
    provider, device = options.draft_provider, options.draft_device
    if provider is None and device is None:
        return on_device(entry, options.provider, options.device, must_run=False)
    return on_device(entry, provider, device)


def _on_place(entry: ModelEntry, option: PlaceOption, name: str, must_run: bool) -> ModelEntry:
    target = place_target(option)
    place, contract = target.place(name, option), entry.contract
    if place.provider not in contract.providers and not must_run:
        return entry
    if place.provider not in contract.providers:
        known = ", ".join(p.name for p in target.places if p.provider in contract.providers)
        raise ConfigError(
            f"{option} is {name}, but this bundle (compiler {contract.compiler}) "
            f"runs on {known or f'no such {option}'}: export the model with --target {target.name}"
        )
    available = target_module(target.name, "run_places").available()
    if place.provider not in available:
        here = ", ".join(p.name for p in target.places if p.provider in available)
        raise ConfigError(
            f"{option} {name} is not here, this installation and machine have "
            f"{here or 'nothing'}: it takes {place_needs(target, place)}"
        )
    return replace(entry, contract=replace(contract, providers=(place.provider,)))
