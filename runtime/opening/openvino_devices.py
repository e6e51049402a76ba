"""Which device of OpenVINO a model runs on."""

from __future__ import annotations

from dataclasses import replace

from edgedec.models.errors import ConfigError
from edgedec.models.model_entry import ModelEntry
from edgedec.targets.openvino_devices import (
    OPENVINO_DEVICES,
    check_openvino_device,
    openvino_requirement,
)

_BACKEND = "openvino"


def on_openvino_device(entry: ModelEntry, name: str, must_run: bool = True) -> ModelEntry:
    """Returns ``entry`` for the device called ``name``.

    must_run: whether a graph that OpenVINO does not run is refused; else it stays where it is.

    Raises:
        ConfigError: There is no such device, here or at all, or its graph is not OpenVINO's.
    """
    check_openvino_device(name)
    if entry.contract.backend != _BACKEND:
        if not must_run:
            return entry
        raise ConfigError(
            f"device is {name}, but OpenVINO does not run this bundle's graph, of the compiler "
            f"{entry.contract.compiler}: export the model with --target openvino"
        )
    here = available_devices()
    if name not in here:
        raise ConfigError(
            f"OpenVINO finds no {name} on this machine, it finds {', '.join(here) or 'nothing'}: "
            f"it takes {openvino_requirement(name)}"
        )
    return replace(entry, contract=replace(entry.contract, providers=(name,)))


def available_devices() -> tuple[str, ...]:
    """Returns the kinds of devices that OpenVINO finds, the CPU first; none where it is missing."""
    try:
        import openvino
    except ImportError:
        return ()
    found = {device.partition(".")[0] for device in openvino.Core().available_devices}
    return tuple(name for name in OPENVINO_DEVICES if name in found)
