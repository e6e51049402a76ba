"""Where a model computes: on a provider of ONNX Runtime, or a device of OpenVINO."""

from __future__ import annotations

from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.opening.options import EngineOptions


def on_device(
    entry: ModelEntry, provider: str | None, device: str | None, must_run: bool = True
) -> ModelEntry:
    """Returns ``entry`` for what is named, which it is as it is for None.

    must_run: whether a graph that does not run there is refused; else it stays where it is.

    Raises:
        ConfigError: There is no such provider or device, or the graph does not run there.
    """
    # Most texts name none, and what an import takes delays their first token.
    if provider is not None:
        from edgedec.runtime.opening.providers import on_provider

        entry = on_provider(entry, provider, must_run)
    if device is not None:
        from edgedec.runtime.opening.openvino_devices import on_openvino_device

        entry = on_openvino_device(entry, device, must_run)
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
