"""Light heads in the model's own graph: they say what they say by themselves, and cost no text."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import edgedec
from edgedec.models.draft_heads import HYDRA, LIGHT_HEADS, OUTPUT, light_gates
from edgedec.models.errors import BundleError, SessionError
from edgedec.models.graph import MTP_IDS
from edgedec.models.hidden_states import normed
from edgedec.models.manifest import BundleManifest, fingerprint_of, read_manifest
from edgedec.models.model_entry import ModelEntry
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig, SpeculationConfig
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import MtpRows, Rows
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import TextFeatures  # noqa: E402

from ..shared_passes import check_random_mixes  # noqa: E402
from .head_parts import CONTEXT, check_cancel, check_rows, check_text, plan_of, put, trained  # noqa: E402

pytestmark = pytest.mark.slow

N_HEADS = 3
DRAFTING = SpeculationConfig(draft_len=7)  # every round, whether or not that pays
TREE = TokenTree((5, 6, 7, 8, 9), (-1, 0, 0, 1, 1))


@pytest.fixture(scope="module", params=LIGHT_HEADS)
def joined(
    request: pytest.FixtureRequest,
    bundle: Path,
    texts: list[TextFeatures],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A bundle with light heads that learned something."""
    folder = tmp_path_factory.mktemp("mtp")
    plan = plan_of(request.param, n_epochs=20, learning_rate=1e-2)
    put(bundle, trained(bundle, folder, texts, plan), folder / "tiny.edgedec", "int8")
    return folder / "tiny.edgedec"


def whole(manifest: BundleManifest) -> ModelEntry:
    assert manifest.head is not None
    assert manifest.head.joined is not None
    return manifest.head.joined


def rows_of(folder: Path, entry: ModelEntry, with_mtp: bool) -> Rows:
    """Returns copies of the rows of `TREE` after a short text."""
    model = open_model(folder, entry, 2)
    sequence = TokenSequence(model, CONTEXT)
    sequence.run(Pass(sequence, TokenTree.chain([1, 2, 3]), ()))
    sequence.commit(range(3))
    layer = entry.config.n_layers
    rows = sequence.run(Pass(sequence, TREE, range(len(TREE)), (layer,), with_mtp=with_mtp))
    mtp = rows.mtp and MtpRows(rows.mtp.ids.copy(), rows.mtp.log_probs.copy())
    found = Rows(
        rows.logits.copy(), {layer: rows.hidden[layer].copy()}, rows.stats.part(slice(None)), 0, mtp
    )
    release_model(model)
    return found


def test_rows_of_several_sequences(joined: Path) -> None:
    """Light heads go on from some rows of a pass and not from others."""
    model = open_model(joined, whole(read_manifest(joined)), 2)
    for seed in range(3):
        check_random_mixes(model, seed, n_rounds=8, with_mtp=True, context=CONTEXT)
    release_model(model)


def test_the_logits_are_those_of_the_graph_without_heads(joined: Path) -> None:
    manifest = read_manifest(joined)
    plain = rows_of(joined, manifest.target, False)
    for with_mtp in (False, True):
        rows = rows_of(joined, whole(manifest), with_mtp)
        assert rows.logits.tobytes() == plain.logits.tobytes()
        assert (rows.mtp is not None) == with_mtp


def test_the_heads_say_what_they_say_by_themselves(joined: Path) -> None:
    """The graph of the heads alone, asked for the same rows head by head."""
    manifest = read_manifest(joined)
    entry, target = manifest.head, manifest.target
    assert entry is not None
    rows = rows_of(joined, whole(manifest), True)
    assert rows.mtp is not None
    head_ids = np.fromfile(joined / str(entry.head.head_ids), np.int32)
    model = open_model(joined, entry.head, 1)
    sequence = TokenSequence(model, CONTEXT)
    state = normed(rows.hidden[target.config.n_layers], target.config.rms_norm_eps)
    seen, tokens = state, rows.stats.argmax
    for head in range(N_HEADS):
        sees = entry.kind == HYDRA
        features = seen if sees else state
        missing = model.capabilities.features - features.shape[1]
        alone = sequence.run(
            Pass(
                sequence,
                TokenTree(tuple(tokens.tolist()), (-1,) * len(tokens)),
                range(len(tokens)),
                (OUTPUT,) if sees else (),
                layer_gates=light_gates(N_HEADS, head),
                features=np.pad(features, ((0, 0), (0, missing))),
            )
        )
        np.testing.assert_array_equal(rows.mtp.ids[:, head], head_ids[alone.stats.top_ids])
        expected = alone.stats.top_logits - alone.stats.log_sum_exp[:, None]
        np.testing.assert_allclose(rows.mtp.log_probs[:, head], expected, rtol=1e-5)
        tokens = rows.mtp.ids[:, head, 0]
        if sees:
            seen = np.concatenate([seen, alone.hidden[OUTPUT]], axis=1)
    release_model(model)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["mtp", "mtp+lookup", "auto"])
def test_the_text_is_that_of_plain_decoding(joined: Path, method: str, temperature: float) -> None:
    check_text(joined, method, temperature, None if method == "auto" else DRAFTING)


def test_drafts_come_true(joined: Path) -> None:
    """Of a text like those learned from, most of what follows the likeliest tokens."""
    request = GenerationConfig(
        max_new_tokens=24, ignore_eos=True, method="mtp", speculation=DRAFTING
    )
    tokens = np.random.default_rng(0).integers(4, 60, 24).tolist()
    with edgedec.load(joined) as engine:
        stats = engine.generate(tokens, request).stats
        assert stats.n_accepted > 0
        assert stats.n_rounds < 23
        auto = dataclasses.replace(request, method="auto")
        assert set(engine.generate(tokens, auto).origins) <= {
            "target", "mtp", "lookup", "recycling", "trigram"
        }  # fmt: skip


def test_the_kv_cache_is_that_of_a_fresh_prefill(joined: Path) -> None:
    with edgedec.load(joined) as engine:
        for n in range(2, 12):
            request = GenerationConfig(
                max_new_tokens=n, ignore_eos=True, method="mtp", speculation=DRAFTING
            )
            found = engine.generate("1212 hello", request)
            check_rows(engine, [*engine.encode("1212 hello"), *found.token_ids][:-1])


def test_a_cancel_in_a_round_loses_nothing(joined: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_cancel(joined, "mtp", 4, monkeypatch, DRAFTING)


def test_sessions_of_the_model_without_heads_serve(
    bundle: Path, joined: Path, tmp_path: Path
) -> None:
    """The heads change nothing of what is kept of a text."""
    request = GenerationConfig(max_new_tokens=8, ignore_eos=True, method="plain")
    with edgedec.load(bundle) as engine:
        text = [*engine.encode("hello"), *engine.generate("hello", request).token_ids]
        engine.save_session(tmp_path / "session")
    with edgedec.load(joined) as engine:
        assert engine.load_session(tmp_path / "session") == len(text) - 1


def test_a_graph_without_heads_says_so(joined: Path) -> None:
    model = open_model(joined, read_manifest(joined).target, 1)
    sequence = TokenSequence(model, CONTEXT)
    with pytest.raises(SessionError, match="has no light heads inside: train some with"):
        sequence.run(Pass(sequence, TREE, range(2), with_mtp=True))
    release_model(model)


def changed(joined: Path, folder: Path, *keys: str, to: Any) -> Path:
    """Returns a copy of the bundle whose manifest says something else of the joined graph."""
    path = Path(shutil.copytree(joined, folder / "broken.edgedec"))
    fields = json.loads((path / "manifest.json").read_text())
    at = fields["head"]["joined"]
    for key in keys[:-1]:
        at = at[key]
    at[keys[-1]] = to
    (path / "manifest.json").write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(
    ("keys", "value", "text"),
    [
        (("weights",), ["target/weights.bin"], "which manifest.head.joined.weights does not list"),
        (("graph",), "target/other.onnx", "refers to 'target/other.onnx', which files do not list"),
        (("contract", "can", "mtp"), 2, r"mtp.* of shape \[\?, 3, 8\], the manifest's config"),
        (("contract", "inputs"), ["input_ids"], "does not hold together"),
        (("config", "hidden_size"), 32, "has hidden.1 of shape|another model's"),
    ],
)
def test_what_does_not_fit_is_refused(
    joined: Path, tmp_path: Path, keys: tuple[str, ...], value: Any, text: str
) -> None:
    with pytest.raises(BundleError, match=text):
        edgedec.load(changed(joined, tmp_path, *keys, to=value))


def test_the_graph_finds_all_weights_where_they_were(bundle: Path, joined: Path) -> None:
    """Nothing of the model is stored twice; what identifies it is as before."""
    manifest, before = read_manifest(joined), read_manifest(bundle)
    name = manifest.target_name
    assert fingerprint_of(manifest, name) == fingerprint_of(before, name)
    entry = whole(manifest)
    graph = onnx.load(joined / entry.graph, load_external_data=False).graph
    assert (joined / entry.graph).stat().st_size < 200_000
    assert MTP_IDS in [value.name for value in graph.output]
    assert set(entry.weights) == {*manifest.target.weights, *manifest.head.head.weights}  # type: ignore[union-attr]
