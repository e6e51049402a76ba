"""Texts as vectors, against the last hidden states of transformers."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import BundleError, ConfigError, SessionError
from edgedec.models.final_norm import read_final_norm
from edgedec.models.manifest import read_manifest

from ...export.tiny_llama import TOKENIZER, sizes
from ...parity.float32_reference import pooled

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

TOKENS = [[3, 80, 7, 7, 41, 0, 12, 66, 5], [9], list(range(1, 90))]  # the last: several passes
FAMILIES = {
    "llama": ("LlamaForCausalLM", {}),
    "gemma3": ("Gemma3ForCausalLM", {"query_pre_attn_scalar": 16}),
}


@pytest.mark.parity
@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    kind, more = FAMILIES[family]
    torch.manual_seed(3)
    made = getattr(transformers, kind)
    model = made(made.config_class(**sizes(2), **more)).eval()
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data += 0.5 * torch.randn_like(parameter)
    model.save_pretrained(tmp_path / "hf")
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    bundle = tmp_path / "tiny.edgedec"
    export(ExportConfig(str(tmp_path / "hf"), bundle, device_target="portable", hidden_layers=(2,)))
    with load(bundle) as engine:
        for pooling in ("mean", "last"):
            found = engine.embed(TOKENS, pooling)
            expected = np.stack([pooled(model, tokens, pooling) for tokens in TOKENS])
            np.testing.assert_allclose(found, expected, atol=2e-6)


def test_what_has_no_vector(smollm2_bundle: Path) -> None:
    with load(smollm2_bundle) as engine:
        assert engine.embed([]).size == 0
        assert engine.embed(["a b c"], is_over=lambda: True).size == 0
        with pytest.raises(ConfigError, match="pooling is 'max', expected mean or cls or last"):
            engine.embed(["a"], "max")  # type: ignore[arg-type]
        with pytest.raises(SessionError, match="prompt is"):
            engine.embed(["a", ""])


def test_a_bundle_without_the_norm(smollm2_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "older.edgedec"
    shutil.copytree(smollm2_bundle, bundle, copy_function=os.link)
    fields = json.loads((smollm2_bundle / "manifest.json").read_text())
    del fields["models"]["target"]["final_norm"]
    (bundle / "manifest.json").unlink()
    (bundle / "manifest.json").write_text(json.dumps(fields))
    with load(bundle) as engine, pytest.raises(SessionError, match="export the model again"):
        engine.embed(["hello"])


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda content: content[4:], "bytes, expected 2304"),
        (lambda content: b"\0\0\x80\x7f" + content[4:], "not finite"),
    ],
)
def test_a_broken_norm(smollm2_bundle: Path, tmp_path: Path, change: Any, match: str) -> None:
    entry = read_manifest(smollm2_bundle).target
    assert entry.final_norm is not None
    path = tmp_path / "final_norm.bin"
    with pytest.raises(BundleError, match="cannot read"):
        read_final_norm(path, entry.config)
    path.write_bytes(change((smollm2_bundle / entry.final_norm).read_bytes()))
    with pytest.raises(BundleError, match=match):
        read_final_norm(path, entry.config)
