"""Draft models in bundles: what is written, what a trimmed head knows, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec import EngineOptions
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import DRAFT_HEAD_SIZE, DraftModelConfig, ExportConfig
from edgedec.export.heads import head_tokens
from edgedec.export.heads.head_tokens import choose_head_ids, count_tokens
from edgedec.export.phases.trimmed_head import TrimmedHead
from edgedec.export.pipeline import export
from edgedec.export.quantising.quantise import Quantized
from edgedec.export.report import ExportReport
from edgedec.models.bundle_files import damaged_files
from edgedec.models.errors import BundleError, CheckpointError, ConfigError
from edgedec.models.head_ids import read_head_ids, write_head_ids
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.models.weights import float_rows
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

GgufMaker = Callable[..., Path]
TEXT = "hello world 12 hello"
TOKENS = [10, 11, 12, 260, 262, 299, 0]


def export_pair(target: Path, draft: Path, bundle: Path, **options: Any) -> ExportReport:
    """Returns the report of an export with a draft model."""
    wanted = DraftModelConfig(source=str(draft), **options)
    report = export(ExportConfig(str(target), bundle, context=64, draft=wanted))
    assert damaged_files(bundle, read_manifest(bundle).files) == []
    return report


def logits_of(bundle: Path, role: str) -> np.ndarray[Any, Any]:
    """Returns the rows of a few tokens. Shapes: [T, n_logits] float32."""
    model = open_model(bundle, read_manifest(bundle).models[role], 1)
    sequence = TokenSequence(model, 64)
    rows = sequence.forward(TokenTree.chain(TOKENS), range(len(TOKENS))).logits.copy()
    release_model(model)
    return rows


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text in which `hell` and ` w` are the most frequent tokens."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "deep").mkdir()
    (folder / "deep" / "a.txt").write_text("hell" * 80)
    (folder / "b.py").write_text(" w w w" * 50)
    (folder / "image.png").write_bytes(b"\x89PNG\0\0" * 100)
    (folder / "latin1.txt").write_bytes("größe ".encode("latin-1") * 1000)
    return folder


@pytest.fixture(scope="module")
def pair(make_gguf: GgufMaker, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose draft model has a head of 40 tokens. Do not write into it."""
    bundle = tmp_path_factory.mktemp("pair") / "pair.edgedec"
    draft = make_gguf("qwen2", type_name="Q8_0", metadata={"tokenizer.ggml.pre": "smollm"})
    export_pair(make_gguf("llama"), draft, bundle, head_size=40, corpus=corpus)
    return bundle


def test_manifest_and_files(pair: Path) -> None:
    manifest = read_manifest(pair)
    assert list(manifest.models) == ["target", "draft"]
    target, draft = manifest.models["target"], manifest.models["draft"]
    assert (target.config.family, draft.config.family) == ("llama", "qwen2")
    assert draft.files == ("draft/model.onnx", "draft/weights.bin", "draft/head_ids.bin")
    assert draft.config.trimmed_head_size == draft.config.n_logits == 40
    assert target.config.n_logits == target.config.vocab_size == draft.config.vocab_size == 300
    assert (target.name, target.head_ids) == (None, None)
    assert draft.name is not None
    assert draft.name.startswith("tiny-qwen2")
    assert draft.licence == "apache-2.0"
    assert "draft/tokenizer.json" not in manifest.files  # it has the target model's
    assert BundleManifest.from_dict(json.loads(json.dumps(manifest.to_dict()))) == manifest
    assert manifest.verification["draft"]["tree_max_abs_error"] == 0
    assert "int4" not in manifest.quantization  # that is the target model's


def test_the_draft_model_runs_and_takes_no_part_in_plain_decoding(pair: Path) -> None:
    request = edgedec.GenerationConfig(max_new_tokens=5, ignore_eos=True)
    with edgedec.load(pair, EngineOptions(draft=False)) as engine:
        assert engine.draft is None
        expected = engine.generate(TEXT, request).token_ids
    with edgedec.load(pair) as engine:
        assert engine.draft is not None
        assert engine.generate(TEXT, request).token_ids == expected
        role = engine.draft.open()
        assert role.pool.model.vocab_size == 40
        role.close()


def test_quantisation_of_the_draft_only(make_gguf: GgufMaker, tmp_path: Path) -> None:
    source = make_gguf("llama", type_name="Q8_0")
    report = export_pair(source, source, tmp_path / "b", head_size=50)
    models = report.manifest.models
    assert set(models["target"].tensor_formats.values()) == {"q8_0"}
    formats = models["draft"].tensor_formats
    assert formats["embed_tokens.weight"] == "q8_0"
    assert {fmt for name, fmt in formats.items() if name != "embed_tokens.weight"} == {"q4_0"}
    assert report.tensors["target"] == ()
    assert {tensor.format for tensor in report.tensors["draft"]} == {"q4_0"}
    document = json.loads(json.dumps(report.to_dict()))
    assert document["models"]["draft"]["trimmed_head_size"] == 50
    assert document["models"]["draft"]["n_bytes"] < document["models"]["target"]["n_bytes"]


def test_what_has_few_bits_already_stays(make_gguf: GgufMaker) -> None:
    for type_name, expected in (("Q4_K", "q4_k"), ("Q4_1", "q4_1"), ("Q6_K", "q4_0")):
        source = open_checkpoint(str(make_gguf("llama", type_name=type_name)))
        quantized = Quantized(source, "int4", is_draft=True)
        assert quantized.format("layers.0.mlp.up_proj.weight").name == expected


@pytest.mark.parametrize("is_tied", [True, False])
@pytest.mark.parametrize("type_name", ["F32", "Q8_0", "Q4_K", "Q6_K", "Q5_1"])
def test_trimmed_rows_are_those_of_the_whole_head(
    make_gguf: GgufMaker, tiny: Any, type_name: str, is_tied: bool
) -> None:
    weights = {"output.weight": None} if is_tied else {}
    source = open_checkpoint(str(make_gguf("llama", type_name=type_name, weights=weights)))
    whole = "embed_tokens.weight" if is_tied else "lm_head.weight"
    ids = np.array([0, 1, 7, 64, 65, 128, 250, 299], np.int32)
    trimmed = TrimmedHead(source, ids)
    assert trimmed.config.trimmed_head_size == 8
    assert not trimmed.config.is_head_tied
    expected = float_rows(source, whole, 0, tiny.VOCAB)[ids]
    np.testing.assert_array_equal(float_rows(trimmed, "lm_head.weight", 0, 8), expected)
    np.testing.assert_array_equal(float_rows(trimmed, "lm_head.weight", 3, 6), expected[3:6])
    assert trimmed.format("lm_head.weight") == source.format(whole)
    embedding = float_rows(trimmed, "embed_tokens.weight", 0, tiny.VOCAB)
    np.testing.assert_array_equal(
        embedding, float_rows(source, "embed_tokens.weight", 0, tiny.VOCAB)
    )


@pytest.mark.slow
@pytest.mark.parity
@pytest.mark.parametrize("type_name", ["F32", "Q8_0", "Q4_K"])
def test_trimmed_logits_equal_the_whole_heads_bit_for_bit(
    make_gguf: GgufMaker, tmp_path: Path, corpus: Path, type_name: str
) -> None:
    source, rows = make_gguf("llama", type_name=type_name), {}
    for size in (0, 1, 33, 130):
        bundle = tmp_path / f"{size}.edgedec"
        size_and_special = size and size + 3
        export_pair(
            source, source, bundle, head_size=size_and_special, corpus=corpus, quantization="keep"
        )
        rows[size] = logits_of(bundle, "draft")
    np.testing.assert_array_equal(rows[0], logits_of(tmp_path / "0.edgedec", "target"))
    for size in (1, 33, 130):
        ids = read_head_ids(tmp_path / f"{size}.edgedec" / "draft/head_ids.bin", 300)
        assert len(ids) == size + 3
        np.testing.assert_array_equal(rows[size], rows[0][:, ids])


def test_portable_bundles_have_drafts_too(make_gguf: GgufMaker, tmp_path: Path) -> None:
    source = make_gguf("llama")
    wanted = DraftModelConfig(str(source), "keep", head_size=30)
    bundle = tmp_path / "b"
    export(ExportConfig(str(source), bundle, device_target="portable", context=64, draft=wanted))
    ids = read_head_ids(bundle / "draft/head_ids.bin", 300)
    np.testing.assert_allclose(
        logits_of(bundle, "draft"), logits_of(bundle, "target")[:, ids], rtol=1e-5, atol=1e-5
    )


def test_another_tokenizer_travels_along(make_gguf: GgufMaker, tmp_path: Path) -> None:
    bundle = tmp_path / "b"
    export_pair(make_gguf("llama"), make_gguf("qwen2"), bundle)
    assert "draft/tokenizer.json" in read_manifest(bundle).files
    with edgedec.load(bundle) as engine:
        assert engine.draft is not None
        assert engine.draft.tokenizers == (
            bundle / "tokenizer.json",
            bundle / "draft/tokenizer.json",
        )
        role = engine.draft.open()  # same vocabulary, split in another way
        drafting = DraftModelDrafter(role).begin(DraftPrompt([5, 6, 7]))
        assert drafting.unread([5, 6, 7]).n_missing == 3
        role.close()


def test_another_bundle_may_draft(make_gguf: GgufMaker, pair: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.edgedec"
    export(ExportConfig(str(make_gguf("llama")), other, context=64))
    with edgedec.load(pair, EngineOptions(draft=other)) as engine:
        assert engine.draft is not None
        assert engine.draft.tokenizers is None
        role = engine.draft.open()
        assert role.pool.model.vocab_size == 300
        role.close()
    with edgedec.load(other) as engine:
        assert engine.draft is None
    with pytest.raises(BundleError, match="expected a bundle"):
        edgedec.load(other, EngineOptions(draft=tmp_path / "nowhere"))


def test_head_tokens_of_a_corpus(make_gguf: GgufMaker, corpus: Path, tiny: Any) -> None:
    source = open_checkpoint(str(make_gguf("llama")))
    vocabulary = {token: i for i, token in enumerate(tiny.tiny_vocabulary()[0])}
    special = {vocabulary[token] for token in tiny.SPECIALS}
    five = set(choose_head_ids(source, 5, corpus).tolist())
    assert five == special | {vocabulary["hell"], vocabulary["Ġw"]}
    assert set(choose_head_ids(source, 40, corpus).tolist()) > five
    progress: list[tuple[int, int]] = []
    choose_head_ids(source, 20, corpus / "b.py", lambda done, total: progress.append((done, total)))
    assert progress[-1] == (300, 300)


def test_head_tokens_without_a_corpus(make_gguf: GgufMaker) -> None:
    source = open_checkpoint(str(make_gguf("llama")))
    assert choose_head_ids(source, 20, None).tolist() == list(range(20))
    # Ids that fill up the embedding are no tokens: they come last.
    assert choose_head_ids(source, 266, None).tolist() == list(range(266))


def test_counting(corpus: Path, tiny: Any, make_gguf: GgufMaker) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(open_checkpoint(str(make_gguf("llama"))).tokenizer_json())
    counts = count_tokens(tokenizer, corpus / "b.py", 300)
    assert counts[tiny.tiny_vocabulary()[0].index("Ġw")] == counts.sum() == 150


def test_a_character_cut_in_two_is_no_reason_to_skip(
    make_gguf: GgufMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenizers import Tokenizer

    monkeypatch.setattr(head_tokens, "MAX_CORPUS_BYTES", 100)
    (path := tmp_path / "long.txt").write_text("a" + "é" * 100)
    tokenizer = Tokenizer.from_str(open_checkpoint(str(make_gguf("llama"))).tokenizer_json())
    assert count_tokens(tokenizer, path, 300).any()


def test_which_vocabularies_are_trimmed() -> None:
    default = DraftModelConfig("x")
    assert default.chosen_head_size(2 * DRAFT_HEAD_SIZE + 1) == DRAFT_HEAD_SIZE
    assert default.chosen_head_size(2 * DRAFT_HEAD_SIZE) == 0
    assert DraftModelConfig("x", head_size=0).chosen_head_size(10**6) == 0
    assert DraftModelConfig("x", head_size=500).chosen_head_size(501) == 500
    assert DraftModelConfig("x", head_size=500).chosen_head_size(500) == 0


def test_options_that_make_no_sense(make_gguf: GgufMaker, tmp_path: Path) -> None:
    source, destination = make_gguf("llama"), tmp_path / "b"
    (tmp_path / "binary").write_bytes(b"\0" * 100)
    for options, message in (
        ({"quantization": "int2"}, "unknown quantization"),
        ({"head_size": -1}, "draft head size"),
        ({"corpus": tmp_path / "nowhere"}, "nowhere"),
        ({"head_size": 2}, "no room for the 3 special tokens"),
        ({"head_size": 40, "corpus": tmp_path / "binary"}, "no UTF-8 text"),
    ):
        with pytest.raises(ConfigError, match=message):
            export_pair(source, source, destination, **options)
        assert not destination.exists()
    with pytest.raises(CheckpointError, match="no model"):
        export_pair(source, tmp_path / "missing.gguf", destination)


@pytest.fixture
def copied(pair: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pair, tmp_path / "copy.edgedec"))


def change(bundle: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    fields = json.loads((bundle / "manifest.json").read_text())
    edit(fields)
    (bundle / "manifest.json").write_text(json.dumps(fields))


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda f: f["models"]["draft"].update(head_ids=None), "trimmed head of 40"),
        (lambda f: f["models"]["draft"].update(head_ids="nowhere"), "nowhere"),
        (lambda f: f["models"]["draft"].update(head_ids=7), "head_ids is 7"),
        (lambda f: f["models"]["draft"].update(head_ids="tokenizer.json"), "expected 160"),
        (
            lambda f: f["models"]["target"].update(head_ids="draft/head_ids.bin"),
            "trimmed head of 0",
        ),
        (lambda f: f["models"]["draft"]["config"].update(trimmed_head_size=41), "expected 164"),
        (lambda f: f["models"]["draft"]["config"].update(trimmed_head_size=300), "expected 1200"),
        (lambda f: f["models"]["draft"]["config"].update(trimmed_head_size=0), "trimmed head of 0"),
        (lambda f: f["models"]["draft"]["config"].update(trimmed_head_size=-1), "trimmed_head"),
        (lambda f: f["models"]["draft"]["config"].update(trimmed_head_size=301), "trimmed_head"),
        (lambda f: f["models"]["draft"]["config"].update(is_head_tied=True), "tied"),
        (lambda f: f["models"].pop("target"), "are 0 of the kind target, expected one"),
        (lambda f: f["models"]["draft"].update(kind="target"), "are 2 of the kind target"),
        (lambda f: f["models"].update(more=f["models"]["draft"]), "are 2 of the kind draft"),
        (
            lambda f: [f["models"].pop("target"), f["models"]["draft"].update(kind="target")],
            "trimmed head of 40",
        ),
    ],
)
def test_hostile_manifests(copied: Path, edit: Callable[..., object], message: str) -> None:
    change(copied, edit)
    with pytest.raises(BundleError, match=message):
        edgedec.load(copied)


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda ids: ids[::-1], "rising"),
        (lambda ids: np.where(ids == ids[5], ids[4], ids), "rising"),
        (lambda ids: np.where(ids == ids[-1], 300, ids), "300 is no token"),
        (lambda ids: np.where(ids == ids[0], -1, ids), "-1 is no token"),
    ],
)
def test_hostile_head_ids(copied: Path, spoil: Callable[..., Any], message: str) -> None:
    from edgedec.models.bundle_files import file_sha256

    path = copied / "draft/head_ids.bin"
    write_head_ids(path, spoil(read_head_ids(path, 300)))
    with pytest.raises(BundleError, match="damaged"):
        edgedec.load(copied)
    change(copied, lambda f: f["files"]["draft/head_ids.bin"].update(sha256=file_sha256(path)))
    with edgedec.load(copied) as engine:
        assert engine.draft is not None
        with pytest.raises(BundleError, match=message):
            engine.draft.open()


@pytest.mark.robustness
def test_broken_head_ids(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    with pytest.raises(BundleError, match="cannot read"):
        read_head_ids(path, 10)
    for content in (b"", b"\1\0\0", b"\1\0\0\0\2"):
        path.write_bytes(content)
        with pytest.raises(BundleError):
            read_head_ids(path, 10)
    path.write_bytes(bytes([1, 0, 0, 0, 9, 0, 0, 0]))
    assert read_head_ids(path, 10).tolist() == [1, 9]


DRAFTED = edgedec.GenerationConfig(max_new_tokens=20, ignore_eos=True, method="draft")


def test_names_of_models_are_free(copied: Path) -> None:
    def rename(fields: dict[str, Any]) -> None:
        models = fields["models"]
        fields["models"] = {"small_1": models["draft"], "large-2": models["target"]}

    with edgedec.load(copied) as engine:
        expected = engine.generate("hello world 12", DRAFTED).token_ids
    change(copied, rename)
    manifest = read_manifest(copied)
    assert (manifest.target_name, manifest.draft_name) == ("large-2", "small_1")
    with edgedec.load(copied) as engine:
        result = engine.generate("hello world 12", DRAFTED)
        assert result.token_ids == expected
        assert result.stats.n_proposed > 0
