"""Vectors of embedding models: what sentence-transformers' files say, from text to vector."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, processors

from edgedec import Engine, EngineOptions, load
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import (
    BundleError,
    CheckpointError,
    ConfigError,
    EdgedecError,
    SessionError,
)
from edgedec.models.manifest import read_manifest
from tests.tiny_encoder import CONTEXT, PROMPTS, torch, transformers, wordpiece, write_encoder

Vectors = npt.NDArray[np.float32]

TEXTS = ["Bread needs flour.", "rockets", "", "[SEP] [PAD] flouring", "a b c d e f g h i"]
LONG = "bread " * 40


def expected(
    model: Any, texts: list[str], mode: str, prompt: str = "", most: int = CONTEXT
) -> Vectors:
    """Returns the pooled hidden states of transformers, of length 1. Special text stays text."""
    tokenizer, found = wordpiece(), []
    tokenizer.encode_special_tokens = True
    for text in texts:
        inner = tokenizer.encode(prompt + text, add_special_tokens=False).ids[: most - 2]
        with torch.inference_mode():
            rows = model(torch.tensor([[2, *inner, 3]])).last_hidden_state[0].numpy()
        pooled = {"mean_tokens": rows.mean(0), "cls_token": rows[0], "lasttoken": rows[-1]}[mode]
        found.append(pooled / np.linalg.norm(pooled))
    return np.stack(found)


def made(folder: Path, bundle: Path, target: str = "portable") -> Path:
    export(ExportConfig(str(folder), bundle, device_target=target))
    return bundle


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp("toy")
    return write_encoder(folder), folder


@pytest.fixture(scope="module")
def engine(toy: tuple[Any, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with load(made(toy[1], tmp_path_factory.mktemp("b") / "b")) as engine:
        yield engine


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_pooling(tmp_path: Path, mode: str, target: str) -> None:
    model = write_encoder(tmp_path / "m", mode)
    with load(made(tmp_path / "m", tmp_path / "b", target), EngineOptions(threads=2)) as engine:
        found = engine.embed(TEXTS)
        alone = np.concatenate([engine.embed([text]) for text in TEXTS])
    np.testing.assert_array_equal(found, alone)
    atol = 1e-5 if target == "portable" else 1e-3  # the latter's KV cache has halves
    np.testing.assert_allclose(found, expected(model, TEXTS, mode), atol=atol)


def test_prompts(toy: tuple[Any, Path], engine: Engine) -> None:
    for name, prompt in PROMPTS.items():
        found = engine.embed(TEXTS, prompt_name=name)
        np.testing.assert_allclose(found, expected(toy[0], TEXTS, "mean_tokens", prompt), atol=1e-5)
    with pytest.raises(ConfigError, match="no prompt 'title', expected one of: document, query"):
        engine.embed(TEXTS, prompt_name="title")


def test_the_default_prompt(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "m", default="query")
    with load(made(tmp_path / "m", tmp_path / "b")) as engine:
        found = engine.embed(TEXTS)
    np.testing.assert_allclose(
        found, expected(model, TEXTS, "mean_tokens", PROMPTS["query"]), atol=1e-5
    )


def test_dense_matrices_and_fewer_dimensions(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "m", dense=(20, 12))
    with load(made(tmp_path / "m", tmp_path / "b")) as engine:
        found, few = engine.embed(TEXTS), engine.embed(TEXTS, n_dimensions=5)
        with pytest.raises(ConfigError, match="n_dimensions is 13, expected at most the 12"):
            engine.embed(TEXTS, n_dimensions=13)
    weights = [load_file(tmp_path / f"m/{i}_Dense/model.safetensors") for i in (2, 3)]
    tokens = [[2, *wordpiece().encode(text, add_special_tokens=False).ids, 3] for text in TEXTS]
    tokens[3] = [2, *_plain(TEXTS[3]), 3]
    with torch.inference_mode():
        hidden = [model(torch.tensor([ids])).last_hidden_state[0].mean(0).numpy() for ids in tokens]
    first = np.tanh(np.stack(hidden) @ weights[0]["linear.weight"].T + weights[0]["linear.bias"])
    second = first @ weights[1]["linear.weight"].T
    np.testing.assert_allclose(found, _unit(second), atol=1e-5)
    np.testing.assert_allclose(few, _unit(second[:, :5]), atol=1e-5)


QWEN_PROMPTS = {"query": "Instruct: find\nQuery:", "document": ""}


def write_decoder(folder: Path) -> Any:
    """Writes a tiny Qwen3 whose texts end with a token, as Qwen3-Embedding has it."""
    torch.manual_seed(7)
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = transformers.Qwen3Model(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    write_encoder(folder, "lasttoken", QWEN_PROMPTS)
    model.save_pretrained(folder)
    words = {chr(32 + i): i for i in range(95)} | {"\n": 95, "<|endoftext|>": 96}
    tokenizer = Tokenizer(models.BPE(words, []))
    ends = [("<|endoftext|>", 96)]
    tokenizer.post_processor = processors.TemplateProcessing("$A <|endoftext|>", None, ends)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize("target", ["portable", "cpu"])
def test_a_decoder_with_pooling_files(tmp_path: Path, target: str) -> None:
    """Its texts end with their token, whose hidden state is the vector; it can still write."""
    model = write_decoder(tmp_path / "m")
    texts, prompt = ["Bread needs flour.", "", "<|endoftext|>"], QWEN_PROMPTS["query"]
    with load(made(tmp_path / "m", tmp_path / "b", target), EngineOptions(threads=2)) as engine:
        found = [engine.embed(texts), engine.embed(texts, prompt_name="query")]
        cut = engine.embed(["a" * 100], most_tokens=10)
        assert engine.generate("Bread", max_new_tokens=3, ignore_eos=True).n_new_tokens == 3
    atol = 1e-5 if target == "portable" else 2e-3  # the latter's KV cache has halves
    for vectors, before in zip(found, ("", prompt), strict=True):
        for vector, text in zip(vectors, texts, strict=True):
            ids = [95 if c == "\n" else ord(c) - 32 for c in before + text]
            np.testing.assert_allclose(vector, _last_of(model, [*ids, 96]), atol=atol)
    np.testing.assert_allclose(cut[0], _last_of(model, [65] * 9 + [96]), atol=atol)


def _last_of(model: Any, ids: list[int]) -> Vectors:
    with torch.inference_mode():
        last = model(torch.tensor([ids])).last_hidden_state[0, -1].numpy()
    return np.asarray(last / np.linalg.norm(last))


def _plain(text: str) -> list[int]:
    tokenizer = wordpiece()
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def _unit(rows: Vectors) -> Vectors:
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def test_long_texts_are_refused_or_cut(toy: tuple[Any, Path], engine: Engine) -> None:
    with pytest.raises(SessionError, match=f"42 tokens.* {CONTEXT}"):
        engine.embed([LONG])
    for most, cut_to in ((0, CONTEXT), (9, 9), (10**6, CONTEXT)):
        found = engine.embed(["a", LONG], most_tokens=most)
        wanted = expected(toy[0], ["a", LONG], "mean_tokens", most=cut_to)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_token_ids_are_taken_as_they_are(toy: tuple[Any, Path], engine: Engine) -> None:
    """Those of padding alone, too."""
    found = engine.embed([[0, 0], [0]])
    for vector, ids in zip(found, ([0, 0], [0]), strict=True):
        with torch.inference_mode():
            hidden = toy[0](torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
        np.testing.assert_allclose(vector, hidden / np.linalg.norm(hidden), atol=1e-5)
    with pytest.raises(SessionError, match="the prompt holds token"):
        engine.embed([[10**6]])
    with pytest.raises(SessionError, match="expected text, chat messages"):
        engine.embed([[]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max', expected mean or cls or last"),
        ({"most_tokens": -1}, "most_tokens is -1, expected 0 or more"),
        ({"n_dimensions": 0}, "n_dimensions is 0, expected 1 or more"),
        ({"n_dimensions": 33}, "n_dimensions is 33, expected at most the 32"),
    ],
)
def test_settings_that_make_no_sense(
    engine: Engine, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        engine.embed(["a"], **settings)


def test_without_pooling_files_the_mean_is_taken_and_said(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "m")
    (tmp_path / "m/modules.json").unlink()
    report = export(ExportConfig(str(tmp_path / "m"), tmp_path / "b", device_target="portable"))
    assert any("their mean is taken" in warning for warning in report.warnings)
    with load(tmp_path / "b") as engine:
        found = engine.embed(TEXTS)
    np.testing.assert_allclose(found, expected(model, TEXTS, "mean_tokens"), atol=1e-5)


def _json(path: str, values: Any) -> Any:
    return lambda folder: (folder / path).write_text(json.dumps(values))


def _tensors(path: str, tensors: dict[str, Vectors]) -> Any:
    return lambda folder: save_file(tensors, folder / path)


_POOLING, _DENSE = "1_Pooling/config.json", "2_Dense/config.json"
_WEIGHTS = "2_Dense/model.safetensors"
_KIND = "sentence_transformers.models"
_DENSE_FIELDS = {"in_features": 32, "out_features": 20, "bias": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_json(_POOLING, {"pooling_mode_max_tokens": True}), "pooling_mode is max_tokens"),
        (_json(_POOLING, {}), "pooling_mode is missing"),
        (
            _json(_POOLING, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}),
            "pooling_mode is cls_token and mean_tokens",
        ),
        (_json(_POOLING, {"pooling_mode_mean_tokens": "yes"}), "expected true or false"),
        (
            _json(_POOLING, {"pooling_mode_mean_tokens": True, "include_prompt": False}),
            "include_prompt is False",
        ),
        (_json("modules.json", {}), "modules.json: is not a list"),
        (_json("modules.json", [{"type": f"{_KIND}.Transformer"}]), "names no Pooling"),
        (
            _json("modules.json", [{"type": f"{_KIND}.Pooling", "path": "../1_Pooling"}]),
            "expected a folder beside the file",
        ),
        (
            _json("modules.json", [{"type": f"{_KIND}.WordWeights", "path": "w"}]),
            "the module 'w' is 'WordWeights'",
        ),
        (_json("sentence_bert_config.json", {"do_lower_case": True}), "do_lower_case is True"),
        (_json("sentence_bert_config.json", {"max_seq_length": 0}), "max_seq_length is 0"),
        (
            _json("config_sentence_transformers.json", {"default_prompt_name": "x"}),
            "default_prompt_name is 'x'",
        ),
        (_json("config_sentence_transformers.json", {"prompts": {"a": 1}}), "a is 1, expected"),
        (
            _json(_DENSE, {**_DENSE_FIELDS, "activation_function": "torch.nn.GLU"}),
            "activation_function is 'torch.nn.GLU'",
        ),
        (_json(_DENSE, {**_DENSE_FIELDS, "out_features": 21}), r"expected \[21, 32\]"),
        (lambda folder: (folder / _WEIGHTS).unlink(), "2_Dense/model.safetensors is missing"),
        (
            _tensors(_WEIGHTS, {"linear.weight": np.zeros((20, 32), np.float32)}),
            "holds linear.weight, expected linear.bias, linear.weight",
        ),
        (
            _tensors(
                _WEIGHTS,
                {
                    "linear.weight": np.full((20, 32), np.nan, np.float32),
                    "linear.bias": np.zeros(20, np.float32),
                },
            ),
            "linear.weight holds infinite or undefined values",
        ),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, change: Any, message: str) -> None:
    write_encoder(tmp_path / "m", dense=(20,))
    change(tmp_path / "m")
    with pytest.raises(EdgedecError, match=message) as caught:
        export(ExportConfig(str(tmp_path / "m"), tmp_path / "b", device_target="portable"))
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "b").exists()


def test_dense_matrices_must_follow_each_other(tmp_path: Path) -> None:
    write_encoder(tmp_path / "m", dense=(20, 12))
    fields = {"in_features": 21, "out_features": 12, "bias": False}
    fields["activation_function"] = "torch.nn.modules.linear.Identity"
    _json("3_Dense/config.json", fields)(tmp_path / "m")
    _tensors("3_Dense/model.safetensors", {"linear.weight": np.ones((12, 21), np.float32)})(
        tmp_path / "m"
    )
    with pytest.raises(CheckpointError, match="dense matrix 1 reads 21 numbers, expected 20"):
        export(ExportConfig(str(tmp_path / "m"), tmp_path / "b", device_target="portable"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.pop("embedding"), "embedding is missing"),
        (lambda fields: fields["embedding"].update(pooling="max"), "pooling is 'max'"),
        (lambda fields: fields["embedding"].update(extra=1), "has the key 'extra'"),
        (lambda fields: fields["embedding"].update(default_prompt="x"), "default_prompt is 'x'"),
        (lambda fields: fields["embedding"]["dense"][0].update(n_in=7), "reads 7 numbers"),
        (lambda fields: fields["files"].pop("dense.bin"), "files do not list dense.bin"),
    ],
)
def test_manifests_that_do_not_hold_together(tmp_path: Path, change: Any, message: str) -> None:
    write_encoder(tmp_path / "m", dense=(20,))
    path = made(tmp_path / "m", tmp_path / "b") / "manifest.json"
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))
    with pytest.raises(BundleError, match=message):
        read_manifest(tmp_path / "b")
