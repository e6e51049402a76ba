"""What every family has to hold, against transformers: a test file of a family inherits it."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import pytest

from edgedec import EngineOptions, GenerationConfig, load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.quantising.calibration.rows import SideBySideOps
from edgedec.export.to_onnx.runners import FusedRunner, PortableRunner
from edgedec.export.verifying.verify import compare_logits
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.families import find_family
from edgedec.models.fields import Fields
from edgedec.models.reference import ReferenceModel, ReferenceOps
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.parity.toy_parity import Logits, RowParity, continued, export_entry

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")
gguf = pytest.importorskip("gguf", reason="needs the dev extra")

# One is made for each tensor here, and for each module in transformers; it takes 40 ms.
gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)

Tensors = Iterable[tuple[str, Logits]]

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5, 91, 33, 8, 2, 60, 77, 19, 4, 4, 58, 30, 11, 95, 23]
ROUTERS = (".mlp.gate.weight", ".router.layer.weight", ".block_sparse_moe.gate.weight")
MAX_ORT_KL = 5e-3
"""Nats that ONNX Runtime's 8-bit activations, of 32 to a scale, may cost."""
MAX_FLOAT16_KL = 1e-5
"""Nats that ONNX Runtime's operators in float16 may cost."""
MAX_GAP = 0.35
"""Largest logit by which float32 may prefer another token: what 8-bit activations cost."""

SIZES = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64, "rope_theta": 1e4, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Toy:
    """A tiny random model of transformers, and its directory."""

    model: Any
    folder: Path

    def logits(self, tokens: list[int]) -> Logits:
        with torch.inference_mode():
            return np.asarray(self.model(torch.tensor([tokens])).logits[0].numpy())


class HasModel(Protocol):
    """What has a model of transformers."""

    @property
    def model(self) -> Any:
        """The model."""


class GgufWriting:
    """Writes a model of transformers under GGUF's names; attributes as of `FamilyParity`."""

    SIZES: ClassVar[dict[str, Any]] = SIZES
    ARCHITECTURE: str = ""
    METADATA: ClassVar[dict[str, Any]] = {}
    HAS_PAIRED_HEADS: bool = False

    def gguf_tensors(self, name: str, values: Logits) -> Tensors:
        """Yields what a GGUF file holds of a weight: its name there, and values."""
        n_layers, arch = self.SIZES["num_hidden_layers"], gguf_architecture(self.ARCHITECTURE)
        theirs = gguf.get_tensor_name_map(arch, n_layers).get_name(name, (".weight", ".bias"))
        assert theirs is not None, name
        sizes = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
        if self.HAS_PAIRED_HEADS and (size := sizes.get(name.split(".")[-2])) is not None:
            values = paired(values, self.SIZES[size])
        yield theirs, values

    def write_gguf(self, toy: HasModel, path: Path) -> Path:
        """Writes the model under GGUF's names."""
        writer, sizes = gguf.GGUFWriter(path, self.ARCHITECTURE), self.SIZES
        self.write_header(writer)
        for key, value in self.METADATA.items():
            kinds = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
            kinds[type(value)](f"{self.ARCHITECTURE}.{key}", value)
        is_tied = sizes["tie_word_embeddings"]
        for name, values in toy.model.state_dict().items():
            if not (is_tied and name == "lm_head.weight"):
                for theirs, stored in self.gguf_tensors(name, values.numpy()):
                    writer.add_tensor(theirs, np.ascontiguousarray(stored, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def write_header(self, writer: Any) -> None:
        """Writes the usual keys."""
        sizes = self.SIZES
        writer.add_tokenizer_model("none")
        writer.add_block_count(sizes["num_hidden_layers"])
        writer.add_context_length(sizes["max_position_embeddings"])
        writer.add_embedding_length(sizes["hidden_size"])
        writer.add_feed_forward_length(sizes["intermediate_size"])
        writer.add_head_count(sizes["num_attention_heads"])
        writer.add_head_count_kv(sizes["num_key_value_heads"])
        writer.add_key_length(sizes["head_dim"])
        writer.add_value_length(sizes["head_dim"])
        writer.add_layer_norm_rms_eps(sizes["rms_norm_eps"])
        writer.add_rope_freq_base(sizes["rope_theta"])
        writer.add_vocab_size(sizes["vocab_size"])


class FamilyParity(GgufWriting, RowParity):
    """Inherit from it as ``TestParity``.

    SIZES: of the model, by the names of transformers.
    ARCHITECTURE: of GGUF files; empty where there are none. METADATA: of such a file, besides the
    usual, without the architecture. HAS_PAIRED_HEADS: whether they keep q and k for interleaved
    rotation. HAS_ORACLE: whether transformers reads such files.
    LLAMA_CPP_DIFFERS: why llama.cpp is no oracle for this model, if it is none.
    MAX_LLAMA_CPP_ERROR: how far its logits may be, in parts of their spread.
    WIDE_HEADS: sizes that make heads of 16, which ONNX Runtime's operator takes.
    N_NEW: tokens that are written greedily.
    """

    TEXT = TOKENS
    HAS_ORACLE: bool = False
    LLAMA_CPP_DIFFERS: str = ""
    MAX_LLAMA_CPP_ERROR: float = 1e-3
    WIDE_HEADS: ClassVar[dict[str, Any]] = {"hidden_size": 64, "head_dim": 16}
    N_NEW: int = 40

    @classmethod
    def make_toy(cls, model: Any, folder: Path) -> Toy:
        return Toy(model, folder)

    def stacked_experts(
        self, name: str, values: Logits, n_experts: int
    ) -> tuple[str, Logits] | None:
        """Returns all experts of a layer as one weight, when the last comes; None before that.

        Other weights are returned as they are.
        """
        if (found := re.search(r"experts\.\d+\.", name)) is None:
            return name, values
        name = name.replace(found[0], "experts.")
        held = self.__dict__.setdefault(name, [])
        held.append(values)
        return (name, np.stack(self.__dict__.pop(name))) if len(held) == n_experts else None

    @pytest.fixture(scope="class")
    @classmethod
    def toy_with_wide_heads(cls, tmp_path_factory: pytest.TempPathFactory) -> Toy:
        """The model with heads as ONNX Runtime's operator takes them."""
        wide = type(cls.__name__, (cls,), {"SIZES": {**cls.SIZES, **cls.WIDE_HEADS}})
        return wide.draw(tmp_path_factory.mktemp("wide"))

    @classmethod
    def spread(cls, name: str) -> tuple[float, float]:
        """Choices between experts that are nearly tied fall either way: routers vary more."""
        return (0.0, 1.0) if name.endswith(ROUTERS) else super().spread(name)

    def test_reference(self, toy: Toy) -> None:
        logits = ReferenceModel(open_checkpoint(str(toy.folder))).forward(TOKENS).logits
        np.testing.assert_allclose(logits, toy.logits(TOKENS), atol=1e-4)

    def test_texts_side_by_side(self, toy: Toy) -> None:
        """As `--calibrate` computes them: one that is noted, one held out for both models."""
        source = open_checkpoint(str(toy.folder))
        texts = [np.array(TOKENS[2:])], [np.array(TOKENS)]
        ops = SideBySideOps(source, source, *texts, on_inputs=lambda name, rows: None)
        logits = find_family(source.config.family).recipe(ops, source.config)
        np.testing.assert_allclose(logits, np.tile(toy.logits(TOKENS), (2, 1)), atol=1e-4)

    def test_portable(self, toy: Toy, portable: Path) -> None:
        entry = export_entry(portable)
        runner = PortableRunner(portable / entry.graph, entry.config)
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        np.testing.assert_allclose(logits, toy.logits(TOKENS), atol=1e-4)
        tree_equals_chains(runner, toy, atol=1e-4)

    def test_ort(self, toy_with_wide_heads: Toy, tmp_path: Path) -> None:
        """Float weights, then 8-bit ones with 8-bit activations."""
        toy = toy_with_wide_heads
        runner = self.ort_runner(toy, tmp_path / "float", "keep")
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        np.testing.assert_allclose(logits, toy.logits(TOKENS), atol=1e-4)
        tree_equals_chains(runner, toy, atol=1e-4)
        runner = self.ort_runner(toy, tmp_path / "int8", "int8")
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        assert compare_logits(logits, toy.logits(TOKENS))["kl_nats"] < MAX_ORT_KL

    def test_ort_in_float16(self, toy_with_wide_heads: Toy, tmp_path: Path) -> None:
        toy = toy_with_wide_heads
        runner = self.ort_runner(toy, tmp_path / "b", "keep", "float16")
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        assert compare_logits(logits, toy.logits(TOKENS))["kl_nats"] < MAX_FLOAT16_KL
        tree_equals_chains(runner, toy, atol=0.02 * float(logits.std()))

    def ort_runner(
        self, toy: Toy, path: Path, quantization: str, kv_format: str = "float32"
    ) -> PortableRunner:
        """Returns a bundle of ONNX Runtime's operators, opened."""
        wanted = ExportConfig(
            str(toy.folder),
            path,
            device_target="ort",
            quantization=quantization,
            kv_format=kv_format,
        )
        entry = export(wanted).manifest.target
        return PortableRunner(path / entry.graph, entry.config, is_prepacked=True)

    def test_fused_with_float_weights(self, toy: Toy, bundle: Path, tmp_path: Path) -> None:
        """What is left is the KV cache, in halves: nothing that quantising could hide."""
        entry = export(ExportConfig(str(toy.folder), tmp_path / "b")).manifest.target
        runner = FusedRunner(tmp_path / "b" / entry.graph, entry.config, len(TOKENS))
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        assert compare_logits(logits, toy.logits(TOKENS))["kl_nats"] < 1e-5

    def test_fused(self, toy: Toy, sequence: TokenSequence) -> None:
        sequence.truncate(0)
        logits = sequence.forward(TokenTree.chain(TOKENS), range(len(TOKENS))).logits
        found = compare_logits(logits, toy.logits(TOKENS))
        assert found["kl_nats"] < 1e-3, found

    def test_gates(self, toy: Toy, bundle: Path) -> None:
        entry = export_entry(bundle)
        gates = [True] * (2 * entry.config.n_layers)
        gates[2] = gates[5] = False
        runner = FusedRunner(bundle / entry.graph, entry.config, len(TOKENS))
        assert runner.layer_gates is not None
        runner.layer_gates[:] = gates
        logits = runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1))
        source = open_checkpoint(str(toy.folder))
        expected = ReferenceModel(source).forward(TOKENS, layer_gates=gates).logits
        assert compare_logits(logits, expected)["kl_nats"] < 1e-3

    def test_greedy_tokens(self, toy: Toy, sequence: TokenSequence) -> None:
        sequence.truncate(0)
        tokens, pending = list(TOKENS[:7]), list(TOKENS[:7])
        for _ in range(self.N_NEW):
            rows = sequence.forward(TokenTree.chain(pending), [len(pending) - 1])
            sequence.commit(range(len(pending)))
            pending = [int(rows.logits[0].argmax())]
            tokens += pending
        expected = toy.logits(tokens[:-1])[6:]
        gaps = expected.max(axis=1) - expected[np.arange(self.N_NEW), tokens[7:]]
        assert gaps.max() < MAX_GAP
        assert np.mean(gaps == 0) > 0.7

    def test_drafting_gives_the_tokens_of_plain_decoding(self, bundle: Path) -> None:
        found = {}
        with load(bundle, EngineOptions(threads=2)) as engine:
            for method in ("plain", "lookup", "auto"):
                config = GenerationConfig(max_new_tokens=30, method=method, ignore_eos=True)
                found[method] = engine.generate("!#!#!#!#", config).token_ids
        assert len(found["plain"]) > 20
        assert found == dict.fromkeys(found, found["plain"])

    def test_gguf(self, toy: Toy, tmp_path: Path) -> None:
        if not self.ARCHITECTURE:
            pytest.skip("GGUF has no architecture of its own for this family")
        path = self.write_gguf(toy, tmp_path / "tiny.gguf")
        checkpoint = open_checkpoint(str(path))
        logits = ReferenceModel(checkpoint).forward(TOKENS).logits
        np.testing.assert_allclose(logits, toy.logits(TOKENS), atol=1e-4)
        if self.HAS_ORACLE:
            theirs = self.load_gguf(path, toy)
            np.testing.assert_allclose(theirs.logits(TOKENS), toy.logits(TOKENS), atol=1e-4)

    @pytest.mark.models
    def test_gguf_in_llama_cpp(
        self, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Both read the same file, keys and order of rows included."""
        if reason := self.LLAMA_CPP_DIFFERS or ("" if self.ARCHITECTURE else "no GGUF files"):
            pytest.skip(reason)
        path = self.write_gguf(toy, tmp_path / "tiny.gguf")
        expected = llama_cpp_logits(path, TOKENS)
        checkpoint = open_checkpoint(str(path))
        if checkpoint.config.activation == "gelu_tanh":
            monkeypatch.setattr(ReferenceOps, "gate", gate_of_llama_cpp)
        ours = ReferenceModel(checkpoint).forward(TOKENS).logits
        atol = self.MAX_LLAMA_CPP_ERROR * float(expected.std())
        np.testing.assert_allclose(ours, expected, atol=atol)

    def load_gguf(self, path: Path, toy: Toy) -> Toy:
        """Returns what transformers reads from a GGUF file: weights, it knows few of the keys."""
        model = type(toy.model).from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32, config=toy.model.config
        )
        return Toy(model.eval(), path.parent)


class WholePassParity(FamilyParity):
    """Of families whose layers all run in every pass, which the targets cpu and portable have."""

    def test_gates(self, bundle: Path) -> None:
        can = export_entry(bundle).contract.can
        assert (can.gates, can.entry) == (False, False)
        assert can.n_sequences > 1

    def test_ort(self, toy_with_wide_heads: Toy, tmp_path: Path) -> None:
        folder = str(toy_with_wide_heads.folder)
        config = ExportConfig(folder, tmp_path / "b", device_target="ort")
        with pytest.raises(UnsupportedModelError, match="export with --target cpu or portable"):
            export(config)

    def test_ort_in_float16(self) -> None:
        """As `test_ort`."""

    def test_texts_side_by_side(self, toy: Toy, tmp_path: Path) -> None:
        text = tmp_path / "text"
        text.write_text("a text", "utf-8")
        config = ExportConfig(str(toy.folder), tmp_path / "b", quantization="int4", calibrate=text)
        with pytest.raises(UnsupportedModelError, match="inputs of layers, which cannot be quant"):
            export(config)


def llama_cpp_logits(path: Path, tokens: list[int]) -> Logits:
    """Returns what llama.cpp makes of a GGUF file, with keys and values in float32."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    f32 = llama_cpp.GGML_TYPE_F32
    llama = llama_cpp.Llama(
        str(path), n_ctx=64, logits_all=True, verbose=False, type_k=f32, type_v=f32
    )
    if llama._ctx.memory is None:  # of models that fill masks in, which its `eval` does not expect
        llama._ctx.kv_cache_seq_rm = lambda *_: True
    llama.eval(tokens)
    logits = np.array(llama.scores[: len(tokens)], np.float32)
    llama.close()
    return logits


def unread_keys(read: Callable[[Fields], object], values: Mapping[str, object]) -> set[str]:
    """Returns the keys whose values do not matter, as ``read`` takes an object of no type."""
    unread = set(values)
    for key in values:
        try:
            read(Fields({**values, key: object()}, "config.json", CheckpointError))
        except (CheckpointError, UnsupportedModelError):
            unread.remove(key)
    return unread


def gate_of_llama_cpp(ops: ReferenceOps, gate: Logits, up: Logits) -> Logits:
    """Returns ``gelu(gate) * up`` with GELU from a table of halves for halves.

    Source: ggml-org/llama.cpp ``ggml/src/ggml-cpu/vec.h`` ``ggml_vec_gelu_f32`` (MIT). Without that
    Gemma's toys are 0.0016 to 0.0033 of the spread away, with it 0.00005 to 0.0005.
    """
    coarse = gate.astype(np.float16).astype(np.float32)
    gelu = 0.5 * coarse * (1 + np.tanh((2 / np.pi) ** 0.5 * (coarse + 0.044715 * coarse**3)))
    return gelu.astype(np.float16).astype(np.float32) * up


def gguf_architecture(name: str) -> Any:
    return next(arch for arch, theirs in gguf.MODEL_ARCH_NAMES.items() if theirs == name)


def paired(values: Logits, n_heads: int) -> Logits:
    """Returns rows of heads as GGUF files keep them for interleaved rotation.

    Source: ggml-org/llama.cpp ``convert_hf_to_gguf.py`` ``LlamaModel.permute`` (MIT).
    """
    halves = values.reshape(n_heads, 2, -1, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def one_by_one(sequence: TokenSequence, tokens: list[int]) -> Logits:
    """Returns the logits of every token of a new text, each in a pass of its own."""
    sequence.truncate(0)
    return continued(sequence, tokens)


def tree_equals_chains(runner: PortableRunner, toy: Toy, atol: float) -> None:
    """Runs a tree of two branches behind a prefix of which a window hides a part."""
    n = len(TOKENS) - 4
    runner.compute_logits(TOKENS[:n], range(-1, n - 1))
    logits = runner.compute_logits([5, 9, 8, 6, 4], [-1, 0, 0, 1, 2], n_past=n)
    for branch, rows in (([5, 9, 6], [0, 1, 3]), ([5, 8, 4], [0, 2, 4])):
        expected = toy.logits([*TOKENS[:n], *branch])[-3:]
        np.testing.assert_allclose(logits[rows], expected, atol=atol)
