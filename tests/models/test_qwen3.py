"""Qwen3 against transformers: from safetensors and from GGUF, portable and fused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec.export.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import FusedRunner, PortableRunner
from edgedec.export.verify import compare_logits
from edgedec.kernels import has_library
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.reference import ReferenceModel

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

pytestmark = pytest.mark.parity

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5]
SIZES = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip
TOKENIZER = {
    "version": "1.0",
    "model": {"type": "BPE", "vocab": {chr(33 + i): i for i in range(90)}, "merges": []},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A tiny random Qwen3 of transformers, and its directory."""
    torch.manual_seed(3)
    folder = tmp_path_factory.mktemp("qwen3")
    made = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES)).eval()
    for name, parameter in made.named_parameters():
        spread = 0.3 if "norm" in name else 0.15
        torch.nn.init.normal_(parameter, mean=float("norm" in name), std=spread)
    made.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return made, folder


def logits_of(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def test_config(model: tuple[Any, Path]) -> None:
    config = open_checkpoint(str(model[1])).config
    assert (config.family, config.has_qk_norm, config.has_qkv_bias) == ("qwen3", True, False)
    assert (config.head_size, config.is_head_tied, config.rope_theta) == (32, True, 1e6)


def test_reference(model: tuple[Any, Path]) -> None:
    logits = ReferenceModel(open_checkpoint(str(model[1]))).forward(TOKENS).logits
    np.testing.assert_allclose(logits, logits_of(model[0]), atol=1e-4)


@pytest.mark.parametrize(("target", "runner"), [("portable", PortableRunner), ("cpu", FusedRunner)])
def test_bundle(model: tuple[Any, Path], tmp_path: Path, target: str, runner: Any) -> None:
    if target == "cpu" and not has_library():
        pytest.skip("the kernel library is not built")
    config = ExportConfig(str(model[1]), tmp_path / "b", device_target=target)
    entry = export(config).manifest.target
    graph = tmp_path / "b" / entry.graph
    capacity = (len(TOKENS),) if target == "cpu" else ()
    logits = runner(graph, entry.config, *capacity).run(TOKENS, range(-1, len(TOKENS) - 1))
    found = compare_logits(logits, logits_of(model[0]))
    if target == "portable":
        assert found["max_abs_error"] < 1e-4
    assert found["kl_nats"] < 1e-3


def test_gguf(model: tuple[Any, Path], tmp_path: Path) -> None:
    """The same weights under GGUF's names; this architecture's q and k are not reordered."""
    gguf = pytest.importorskip("gguf", reason="needs the dev extra")
    path = tmp_path / "tiny-qwen3.gguf"
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(3)
    writer.add_context_length(64)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(32)
    writer.add_value_length(32)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, 3)
    for name, values in model[0].state_dict().items():
        if name != "lm_head.weight":
            theirs = names.get_name(name, try_suffixes=(".weight",))
            writer.add_tensor(theirs, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(str(path))
    stated = dataclasses.replace(checkpoint.config, rms_norm_eps=1e-6)  # float32 in the file
    assert stated == open_checkpoint(str(model[1])).config
    logits = ReferenceModel(checkpoint).forward(TOKENS).logits
    np.testing.assert_allclose(logits, logits_of(model[0]), atol=1e-4)


def test_sliding_windows_are_refused(model: tuple[Any, Path], tmp_path: Path) -> None:
    fields = json.loads((model[1] / "config.json").read_text())
    for file in model[1].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text(json.dumps({**fields, "use_sliding_window": True}))
    with pytest.raises(UnsupportedModelError, match="use_sliding_window is True"):
        open_checkpoint(str(tmp_path))
