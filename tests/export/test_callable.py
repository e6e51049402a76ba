"""`edgedec.export(model, bundle)`, beside the package of that name."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgedec
from edgedec.export.config import ExportConfig


def test_unknown_settings_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(edgedec.ConfigError, match="did you mean quantization"):
        edgedec.export("no-such-model", tmp_path / "x.edgedec", quant="int4")
    with pytest.raises(edgedec.ConfigError, match="context is '4096'"):
        edgedec.export("no-such-model", tmp_path / "x.edgedec", context="4096")
    with pytest.raises(edgedec.EdgedecError, match="no-such-model"):
        edgedec.export("no-such-model", tmp_path / "x.edgedec")
    assert ExportConfig.__module__ == "edgedec.export.config"  # the package is still one


@pytest.mark.e2e
def test_a_bundle_from_python(smollm2_gguf: Path, small_model: Path, tmp_path: Path) -> None:
    bundle = edgedec.export(smollm2_gguf, tmp_path / "s.edgedec", context=256)
    with edgedec.load(bundle) as engine:
        assert engine.context == 256
        assert engine.generate("The capital of France is", max_new_tokens=2).text == " Paris."
    with pytest.raises(edgedec.BundleError, match=r"exists"):
        edgedec.export(smollm2_gguf, bundle)
    assert edgedec.export(small_model, bundle, context=128, force=True) == bundle
