"""Execution providers of ONNX Runtime, as data: what runs a graph on which device."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.models.errors import ConfigError
from edgedec.models.fields import shown


@dataclass(frozen=True)
class Provider:
    """One execution provider.

    name: as users write it. ort_name: as ONNX Runtime does. memory: what ONNX Runtime calls the
    memory that its graphs compute in. install: what brings it.
    """

    name: str
    ort_name: str
    memory: str
    install: str


_INSTEAD = "pip uninstall -y onnxruntime && pip install"
CPU = Provider("cpu", "CPUExecutionProvider", "cpu", "pip install onnxruntime")
PROVIDERS = {
    provider.name: provider
    for provider in (
        CPU,
        Provider("cuda", "CUDAExecutionProvider", "cuda", f"{_INSTEAD} onnxruntime-gpu"),
        Provider(
            "tensorrt", "TensorrtExecutionProvider", "cuda", f"{_INSTEAD} onnxruntime-gpu tensorrt"
        ),
        Provider("dml", "DmlExecutionProvider", "dml", f"{_INSTEAD} onnxruntime-directml"),
        Provider("webgpu", "WebGpuExecutionProvider", "webgpu", f"{_INSTEAD} onnxruntime-webgpu"),
    )
}
"""By the names that users write. CPU comes first: what runs a graph where nobody says."""


def find_provider(name: str, option: str = "provider") -> Provider:
    """Returns the provider called ``name``; an unknown name is a ConfigError about ``option``."""
    if name not in PROVIDERS:
        raise ConfigError(f"{option} is {shown(name)}, expected one of {', '.join(PROVIDERS)}")
    return PROVIDERS[name]


def provider_of(ort_name: str) -> Provider:
    """Returns the provider that ONNX Runtime calls ``ort_name``; a ConfigError if there is none."""
    for provider in PROVIDERS.values():
        if provider.ort_name == ort_name:
            return provider
    raise ConfigError(f"there is no provider {shown(ort_name)} that edgedec knows")
