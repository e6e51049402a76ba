"""Layers that publishers train for drafting: Qwen3-Next's and Qwen3.5's, from both formats.

transformers leaves their weights out. So the oracle puts them into a decoder layer of its
Qwen3-Next, between what vLLM's ``qwen3_next_mtp.py`` states of norms, order and outputs.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from edgedec import EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.verifying.verify import compare_logits
from edgedec.kernels.library import has_library
from edgedec.models.draft_heads import MTP_LAYER, OUTPUT, head_features, own_features
from edgedec.models.families import draft_layer
from edgedec.models.manifest import read_manifest
from edgedec.models.weights import float_rows
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.models import test_qwen3_next as toys
from tests.parity.family_parity import TOKENS, Logits, Tensors, Toy, torch, transformers

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]
CONTEXT, N_NEW = 400, 50
Family = type[toys.TestParity]
FAMILIES: list[Family] = [toys.TestQwen35, toys.TestQwen35Experts, toys.TestParity]


def longer(cls: Family) -> Family:
    """Returns the toys of a family with room for texts."""
    return type("Longer", (cls,), {"SIZES": {**cls.SIZES, "max_position_embeddings": CONTEXT}})


@dataclasses.dataclass(frozen=True)
class Layer:
    """The layer in torch. weights: by their names in a directory."""

    block: Any
    rotary: Any
    weights: dict[str, Logits]
    target: Any

    def __call__(self, tokens: list[int], state: Any) -> tuple[Logits, Any]:
        """Returns logits, and outputs, of ``tokens`` behind the states before each [T, D]."""
        embedded = self.target.model.embed_tokens(torch.tensor([tokens]))
        both = [self.norm(embedded, "pre_fc_norm_embedding")]
        both.append(self.norm(state[None], "pre_fc_norm_hidden"))
        x = torch.cat(both, dim=-1) @ torch.tensor(self.weights["mtp.fc.weight"]).T
        n = len(tokens)
        mask = torch.full((n, n), float("-inf")).triu(1)[None, None]
        rotation = self.rotary(x, torch.arange(n)[None])
        x = self.block(x, position_embeddings=rotation, attention_mask=mask)
        x = self.norm(x[0] if isinstance(x, tuple) else x, "norm")[0]
        return self.target.lm_head(x).numpy(), x

    def norm(self, x: Any, name: str) -> Any:
        weight = torch.tensor(self.weights[f"mtp.{name}.weight"])
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (1 + weight)


def draw_layer(cls: Family, toy: Toy) -> Layer:
    """Returns the layer with random weights, which it adds to the toy's directory."""
    target, config = toy.model, toy.model.config
    at = config.layer_types.index("full_attention")
    module = transformers.models.qwen3_next.modeling_qwen3_next
    torch.manual_seed(11)
    block = module.Qwen3NextDecoderLayer(config, at).eval()
    weights = {
        "mtp.fc.weight": torch.randn(config.hidden_size, 2 * config.hidden_size) * 0.11,
        **{
            f"mtp.{name}.weight": torch.randn(config.hidden_size) * 0.3
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        },
    }
    for name, parameter in block.named_parameters():
        mean, std = cls.spread(name if name.startswith("mlp") else f"x.{name}")
        torch.nn.init.normal_(parameter, mean=mean, std=std)
        weights[f"mtp.layers.0.{name}"] = parameter.detach()
    arrays = {name: values.numpy() for name, values in weights.items()}
    path = toy.folder / "model.safetensors"
    save_file({**load_file(path), **stacked(cls, arrays)}, path, {"format": "pt"})
    return Layer(block, target.model.rotary_emb, arrays, target)


def stacked(cls: Family, arrays: dict[str, Logits]) -> dict[str, Logits]:
    """Returns the tensors as the family's publishers name them, experts in one tensor if so."""
    if not issubclass(cls, toys.TestQwen35Experts):
        return arrays
    found, stem = dict(arrays), "mtp.layers.0.mlp.experts"
    parts = {
        part: np.stack([found.pop(f"{stem}.{i}.{part}.weight") for i in range(toys.N_EXPERTS)])
        for part in ("gate_proj", "up_proj", "down_proj")
    }
    found[f"{stem}.gate_up_proj"] = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
    return {**found, f"{stem}.down_proj": parts["down_proj"]}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model that has such a layer, and its bundle."""

    cls: Family
    toy: Toy
    layer: Layer
    bundle: Path


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda cls: cls.EXPECTED["family"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    cls = longer(request.param)
    toy = cls.draw(tmp_path_factory.mktemp("toy"))
    with torch.inference_mode():
        layer = draw_layer(cls, toy)
    bundle = tmp_path_factory.mktemp("bundle") / "b"
    export(ExportConfig(str(toy.folder), bundle, quantization="int8"))
    return Case(cls, toy, layer, bundle)


def model_states(case: Case, tokens: list[int]) -> tuple[Logits, Any]:
    """Returns the residual stream behind the last layer, and that behind the final norm [T, D]."""
    streams: list[Any] = []
    norm = case.toy.model.model.norm
    hook = norm.register_forward_pre_hook(lambda module, inputs: streams.append(inputs[0]))
    with torch.inference_mode():
        case.toy.model(torch.tensor([tokens]))
        hook.remove()
        return streams[0][0].numpy(), norm(streams[0])[0]


def test_the_graph_computes_what_the_layer_is(case: Case) -> None:
    """Rows behind the model's states, then two more behind the layer's own outputs."""
    entry = read_manifest(case.bundle).head
    assert entry is not None
    assert (entry.kind, entry.hidden_layers) == (MTP_LAYER, (4,))
    stream, states = model_states(case, TOKENS)
    with torch.inference_mode():
        expected, outputs = case.layer(TOKENS[1:], states[:-1])
        deeper = torch.cat([states[:-1], outputs[-1:]])
        deep, _ = case.layer([*TOKENS[1:], 9], deeper)
    model = open_model(case.bundle, entry.head, 1)
    sequence, n = TokenSequence(model, CONTEXT), len(TOKENS) - 1
    known = head_features({4: stream[:-1]}, (4,), 1e-6)
    chain = TokenTree.chain(TOKENS[1:])
    rows = sequence.run(Pass(sequence, chain, range(n), (OUTPUT,), features=known))
    assert compare_logits(rows.logits, expected)["kl_nats"] < 1e-3
    sequence.commit(range(n))
    own = own_features(rows.hidden[OUTPUT][-1:].copy(), 1)
    rows = sequence.run(Pass(sequence, TokenTree.chain([9]), (0,), features=own))
    assert compare_logits(rows.logits, deep[-1:])["kl_nats"] < 1e-3
    release_model(model)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["mtp", "auto", "lookup+mtp"])
def test_text_stays_that_of_plain_decoding(case: Case, method: str, temperature: float) -> None:
    with load(case.bundle, EngineOptions(threads=2)) as engine:
        for seed, prompt in enumerate(["A", "ABCABCDEFABCABCDEF", "#!" * 140]):
            request = GenerationConfig(
                max_new_tokens=N_NEW, ignore_eos=True, seed=seed,
                sampling=SamplingConfig(temperature=temperature),
            )  # fmt: skip
            plain = engine.generate(prompt, dataclasses.replace(request, method="plain"))
            found = engine.generate(prompt, dataclasses.replace(request, method=method))
            assert found.token_ids == plain.token_ids
            assert not found.stats.failed_drafters
            assert method == "auto" or found.stats.n_proposed


def test_rows_read_the_states_before_their_tokens(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first token of a text has none before it, so no row is its."""
    reads: list[Pass] = []
    begin = TokenSequence.begin

    def watched(sequence: TokenSequence, wanted: Pass) -> None:
        if wanted.features is not None:
            reads.append(wanted)
        begin(sequence, wanted)

    monkeypatch.setattr(TokenSequence, "begin", watched)
    with load(case.bundle, EngineOptions(threads=2)) as engine:
        prompt = engine.encode("ABCDEFABCDEFGHIJ")
        request = GenerationConfig(max_new_tokens=4, ignore_eos=True, method="mtp")
        text = [*prompt, *engine.generate(prompt, request).token_ids]
    first = reads[0]
    n = len(first.tree.tokens)
    assert list(first.tree.tokens) == text[1 : 1 + n]
    assert n >= len(prompt)
    expected = head_features({4: model_states(case, text)[0][:n]}, (4,), 1e-6)
    assert first.features is not None
    found = np.asarray(first.features)
    assert not found[:, expected.shape[1] // 2 :].any()
    likeness = (found * expected).sum(axis=1) / (expected**2).sum(axis=1)
    np.testing.assert_allclose(likeness, 1, atol=0.03)  # of a model with 8-bit weights


def test_without_it_where_it_is_not_wanted(case: Case, tmp_path: Path) -> None:
    export(ExportConfig(str(case.toy.folder), tmp_path / "b", has_brought_head=False))
    assert read_manifest(tmp_path / "b").head is None


def test_other_targets_leave_it_out(case: Case, tmp_path: Path) -> None:
    done = export(ExportConfig(str(case.toy.folder), tmp_path / "b", device_target="portable"))
    assert done.left_out.endswith("left out: only bundles of --target cpu have draft heads")
    assert done.manifest.head is None


LEFT_OUT = {
    "missing": r"missing tensor mtp\.norm\.weight",
    "shape": r"tensor mtp\.fc\.weight has shape .*, expected",
    "extra": "the .* recipe does not read tensor mtp.more.weight",
    "two": "there are 2, expected 1",
    "words": "tensor mtp.fc.weight has type F8_E4M3 and no scales beside it",
}


@pytest.mark.parametrize("change", LEFT_OUT)
def test_layers_of_another_form_are_left_out(case: Case, tmp_path: Path, change: str) -> None:
    """The export says so, in one line."""
    tensors = load_file(case.toy.folder / "model.safetensors")
    if change == "missing":
        del tensors["mtp.norm.weight"]
    elif change == "shape":
        tensors["mtp.fc.weight"] = tensors["mtp.fc.weight"][:, 1:].copy()
    elif change == "extra":
        tensors["mtp.more.weight"] = np.ones(4, np.float32)
    elif change == "two":
        tensors["mtp.layers.1.input_layernorm.weight"] = np.ones(4, np.float32)
    rest = {name: torch.tensor(values) for name, values in tensors.items()}
    if change == "words":
        rest["mtp.fc.weight"] = rest["mtp.fc.weight"].to(torch.float8_e4m3fn)
    for file in case.toy.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_torch(rest, tmp_path / "model.safetensors", {"format": "pt"})
    checkpoint = open_checkpoint(str(tmp_path))
    assert not checkpoint.has_draft_layer
    expected = f"the layer for drafting is left out: {LEFT_OUT[change]}"
    assert re.match(expected, checkpoint.left_out)
    assert "\n" not in checkpoint.left_out
    done = export(ExportConfig(str(tmp_path), tmp_path / "b"))
    assert done.to_dict()["left_out"] == checkpoint.left_out
    assert done.manifest.head is None
    assert open_checkpoint(str(case.toy.folder)).has_draft_layer


def test_fp8(case: Case, tmp_path: Path) -> None:
    """Its matrices are read with their scales; stacked experts are left out."""
    tensors = {
        name: torch.tensor(values)
        for name, values in load_file(case.toy.folder / "model.safetensors").items()
    }
    for name in [name for name in tensors if name.startswith("mtp.") and "norm" not in name]:
        scale = tensors[name].abs().max() / 448
        tensors[name] = (tensors[name] / scale).to(torch.float8_e4m3fn)
        tensors[name.removesuffix(".weight") + ".weight_scale_inv"] = scale.reshape(1, 1)
    for file in case.toy.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_torch(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    checkpoint, whole = open_checkpoint(str(tmp_path)), open_checkpoint(str(case.toy.folder))
    if any(name.startswith("mtp.") and values.ndim == 3 for name, values in tensors.items()):
        assert "left out" in checkpoint.left_out
        return
    assert checkpoint.has_draft_layer
    for name, weight in draft_layer(checkpoint.config).items():
        if len(weight.shape) == 2:
            found, expected = (
                float_rows(each, f"mtp.{name}", 0, weight.shape[0]) for each in (checkpoint, whole)
            )
            np.testing.assert_allclose(found, expected, atol=0.04 * np.abs(expected).max())


def in_gguf(writer: Any) -> Tensors:
    """Yields the layer as GGUF files hold it."""
    theirs = {
        "fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
        "norm": "shared_head_norm",
    }  # fmt: skip
    for name, values in writer.WEIGHTS.items():
        own = name.removeprefix("mtp.").removesuffix(".weight")
        if own in theirs:
            yield f"blk.4.nextn.{theirs[own]}.weight", values + ("norm" in own)
            continue
        for place, stored in writer.gguf_tensors(name.replace("mtp.", "model."), values):
            yield place.replace("blk.0", "blk.4"), stored


def test_gguf_files_hold_the_same_layer(case: Case, tmp_path: Path) -> None:
    """Source: ggml-org/llama.cpp ``conversion/qwen.py`` (MIT): names, and the ones of norms."""
    if case.cls.ARCHITECTURE == "qwen3next":
        pytest.skip("llama.cpp leaves the layers of Qwen3-Next out")
    own = {"N_DRAFT_LAYERS": 1, "WEIGHTS": case.layer.weights, "draft_layer": in_gguf}
    writer = type("Writer", (case.cls,), own)()
    path = writer.write_gguf(case.toy, tmp_path / "tiny.gguf")
    theirs, ours = open_checkpoint(str(case.toy.folder)), open_checkpoint(str(path))
    assert ours.has_draft_layer
    for name, weight in draft_layer(ours.config).items():
        name = f"mtp.{name}"
        if len(weight.shape) == 1:
            found, expected = ours.vector(name), theirs.vector(name)
        else:
            found, expected = (float_rows(c, name, 0, weight.shape[0]) for c in (ours, theirs))
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6, err_msg=name)
