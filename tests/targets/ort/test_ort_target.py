"""Bundles for ONNX Runtime's providers: which of them run, and which do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import pytest

import edgedec
from edgedec import BundleError, ConfigError, EngineOptions, GenerationConfig
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.targets.ort.target import DEVICE


@pytest.fixture(scope="module")
def bundle(smooth_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ort") / "b"
    export(ExportConfig(str(smooth_gguf), path, device_target="ort", context=128))
    return path


def test_the_cpu_is_a_provider_of_every_bundle(
    bundle: Path, smooth_gguf: Path, tmp_path: Path
) -> None:
    export(ExportConfig(str(smooth_gguf), tmp_path / "cpu", context=64))
    for path in (bundle, tmp_path / "cpu"):
        with edgedec.load(path, EngineOptions(threads=1, provider="cpu")) as engine:
            assert engine.generate("he", GenerationConfig(max_new_tokens=2)).n_new_tokens == 2


@pytest.mark.robustness
@pytest.mark.parametrize("name", ["gpu", "", "CPUExecutionProvider", "cuda\n", 3])
def test_an_unknown_provider_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"^provider is [^\n]*expected [^\n]*$"):
        EngineOptions(provider=name)


@pytest.mark.robustness
def test_a_missing_provider_says_what_brings_it(bundle: Path) -> None:
    here = onnxruntime.get_available_providers()
    name = next(place.name for place in DEVICE.places if place.provider not in here)
    with pytest.raises(
        ConfigError, match=f"{name} is not here.* have cpu.*: it takes pip"
    ) as caught:
        edgedec.load(bundle, EngineOptions(provider=name))
    assert "\n" not in str(caught.value)


@pytest.mark.robustness
def test_a_bundle_of_another_target_is_refused(smooth_gguf: Path, tmp_path: Path) -> None:
    export(ExportConfig(str(smooth_gguf), tmp_path / "cpu", context=64))
    with pytest.raises(ConfigError, match="runs on cpu: export the model with --target ort"):
        edgedec.load(tmp_path / "cpu", EngineOptions(provider="cuda"))


@pytest.mark.robustness
def test_a_provider_that_does_not_start_is_named(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime goes on without a provider that fails, and says so on standard error only."""
    here = onnxruntime.get_available_providers()
    name = next(place.name for place in DEVICE.places if place.provider not in here)
    everyone = [place.provider for place in DEVICE.places]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: everyone)
    with (
        pytest.warns(UserWarning, match="not in available provider names"),
        pytest.raises(BundleError, match=f"provider {name} is installed but does not start"),
    ):
        edgedec.load(bundle, EngineOptions(provider=name))


def test_providers_have_names_of_their_own() -> None:
    assert len(set(DEVICE.providers)) == len(DEVICE.places)
    for place in DEVICE.places:
        assert DEVICE.place_of(place.provider) is place
    with pytest.raises(ConfigError, match="no provider 'Abacus'"):
        DEVICE.place_of("Abacus")
