"""A tiny random BERT with a WordPiece tokenizer, as sentence-transformers saves one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

WORDS = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), "bread", "needs", "flour", "rockets",
    "query", "##ing", ":", ".", "fuel",
]  # fmt: skip
PROMPTS = {"query": "query: ", "document": "d: "}
CONTEXT = 24


def wordpiece() -> Tokenizer:
    """Returns BERT's tokenizer over `WORDS`."""
    ids = {word: i for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    ends = [("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, ends)
    tokenizer.add_special_tokens(WORDS[:5])
    return tokenizer


def write_encoder(
    folder: Path,
    mode: str = "mean_tokens",
    prompts: Mapping[str, str] = PROMPTS,
    default: str | None = None,
    dense: tuple[int, ...] = (),
) -> Any:
    """Writes the model into ``folder`` and returns it.

    mode: of the pooling. default: name of the default prompt. dense: widths of matrices behind it,
    the first of which has a bias and an activation.
    """
    torch.manual_seed(5)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=CONTEXT,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    wordpiece().save(str(folder / "tokenizer.json"))
    modules = ["Transformer:", "Pooling:1_Pooling"]
    _write(folder / "1_Pooling/config.json", {f"pooling_mode_{mode}": True})
    width = 32
    for i, size in enumerate(dense):
        modules.append(f"Dense:{i + 2}_Dense")
        _write_dense(folder / f"{i + 2}_Dense", width, size, i == 0)
        width = size
    modules.append("Normalize:9_Normalize")
    parts = (module.partition(":") for module in modules)
    kinds = [{"type": f"sentence_transformers.models.{k}", "path": path} for k, _, path in parts]
    _write(folder / "modules.json", kinds)
    stated = {"prompts": dict(prompts), "default_prompt_name": default}
    _write(folder / "config_sentence_transformers.json", stated)
    return model


def _write_dense(folder: Path, n_in: int, n_out: int, has_bias: bool) -> None:
    kind = "activation.Tanh" if has_bias else "linear.Identity"
    fields = {
        "in_features": n_in, "out_features": n_out, "bias": has_bias,
        "activation_function": f"torch.nn.modules.{kind}",
    }  # fmt: skip
    _write(folder / "config.json", fields)
    rng = np.random.default_rng(n_out)
    tensors = {"linear.weight": rng.normal(size=(n_out, n_in)).astype(np.float32)}
    if has_bias:
        tensors["linear.bias"] = rng.normal(size=n_out).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")


def _write(path: Path, values: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))
