"""Trained draft models: losses, graph against torch, what training does, the text they leave."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import BundleManifest, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.heads.head_check import share_drafted

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.export.heads.bundle_weights import BundleWeights  # noqa: E402
from edgedec.training.draft_models import train_draft as drafts  # noqa: E402
from edgedec.training.features.feature_file import TextFeatures, held_out_of  # noqa: E402
from edgedec.training.loop import TrainingPlan  # noqa: E402
from edgedec.training.losses import LOSSES, cross_entropy  # noqa: E402
from edgedec.training.torch_decoder import TorchDecoder  # noqa: E402

from .head_parts import CONTEXT, N_LOGITS, check_text, feature_file  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def said(texts: list[TextFeatures]) -> list[TextFeatures]:
    """The texts without hidden states."""
    return [dataclasses.replace(text, hidden=text.hidden[:, :0]) for text in texts]


def plan_of(**fields: object) -> drafts.DraftPlan:
    training = TrainingPlan(n_epochs=4, n_steps=1, batch=3, learning_rate=2e-3)
    return drafts.DraftPlan(training, **{"n_layers": 1, "n_logits": N_LOGITS, **fields})  # type: ignore[arg-type]


def trained(
    bundle: Path,
    folder: Path,
    texts: list[TextFeatures],
    plan: drafts.DraftPlan,
    most: int = 10**9,
    origin: Path | None = None,
) -> drafts.TrainedDraft:
    """Returns a draft model after at most so many steps."""
    n_left = [most]

    def is_over() -> bool:
        n_left[0] -= 1
        return n_left[0] < 0

    begin = drafts.Origin(origin or bundle, read_manifest(origin or bundle))
    file = feature_file(folder, texts)
    manifest = read_manifest(bundle)
    return drafts.train_draft(manifest, begin, file, plan, lambda *_: None, is_over)


def put(
    bundle: Path, draft: drafts.TrainedDraft, destination: Path, scheme: str, origin: Path
) -> BundleManifest:
    manifest = read_manifest(bundle)
    begin = drafts.Origin(origin, read_manifest(origin))
    return drafts.put_draft(bundle, manifest, begin, draft, scheme, destination, False)


@pytest.fixture(scope="module")
def draft(
    bundle: Path, said: list[TextFeatures], tmp_path_factory: pytest.TempPathFactory
) -> drafts.TrainedDraft:
    return trained(bundle, tmp_path_factory.mktemp("features"), said, plan_of())


@pytest.fixture(scope="module")
def pair(
    bundle: Path, draft: drafts.TrainedDraft, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The bundle with the draft model."""
    path = tmp_path_factory.mktemp("pair") / "tiny.edgedec"
    put(bundle, draft, path, "int8", bundle)
    return path


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_what_they_are_called(name: str) -> None:
    """Against the definitions in float64, over distributions of which some tokens are known."""
    rng = np.random.default_rng(3)
    p, q = rng.dirichlet(np.ones(12), (2, 5)), rng.dirichlet(np.ones(12), (2, 5))
    known = np.sort(rng.permutation(12)[:6])
    is_real = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], np.float64)

    def lumped(x: np.ndarray) -> np.ndarray:
        return np.concatenate([x[..., known], 1 - x[..., known].sum(-1, keepdims=True)], -1)

    def kl(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.asarray((a * np.log(a / b)).sum(-1))

    a, b = lumped(p), lumped(q)
    of_rows = {
        "kl": kl(a, b),
        "reverse-kl": kl(b, a),
        "jsd": (kl(a, (a + b) / 2) + kl(b, (a + b) / 2)) / 2,
        "tvd": np.abs(a - b).sum(-1) / 2,
    }[name]
    found = LOSSES[name](
        torch.from_numpy(np.log(q[..., known])),
        torch.from_numpy(p[..., known]),
        torch.from_numpy(is_real),
    )
    assert float(found) == pytest.approx((of_rows * is_real).sum() / is_real.sum(), rel=1e-9)


@pytest.mark.parametrize("name", [*LOSSES, "cross_entropy"])
def test_losses_have_gradients_where_tokens_are_unknown(name: str) -> None:
    logits = torch.randn(1, 3, 4, requires_grad=True)
    log_q = torch.log_softmax(logits, -1)[..., [0, 0, 1]]
    p = torch.tensor([[[0.7, 0.0, 0.2], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]])
    loss = LOSSES.get(name, cross_entropy)(log_q, p, torch.ones(1, 3))
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 0].abs().sum() > 0


def draft_logits(bundle: Path, tokens: list[int]) -> np.ndarray:
    """Returns the logits of the bundle's draft model after each token."""
    entry = read_manifest(bundle).models["draft"]
    model = open_model(bundle, entry, 1)
    rows = TokenSequence(model, CONTEXT).forward(TokenTree.chain(tokens), range(len(tokens)))
    logits = rows.logits.copy()
    release_model(model)
    return logits


def torch_logits(bundle: Path, draft: drafts.TrainedDraft, tokens: list[int]) -> np.ndarray:
    """Returns the same in float32."""
    parent = BundleWeights(bundle, read_manifest(bundle).target)
    embedding = {"embed_tokens.weight": parent.matrix("embed_tokens.weight")}
    model = TorchDecoder(draft.config, embedding | draft.weights, CONTEXT)
    with torch.no_grad():
        found = model(torch.tensor([tokens]), torch.zeros(1, len(tokens), 0), 1)
    logits: np.ndarray = found[0][0].numpy()
    return logits


def test_the_graph_computes_what_torch_does(
    bundle: Path, draft: drafts.TrainedDraft, said: list[TextFeatures], tmp_path: Path
) -> None:
    """Float weights but for the embedding; the kernels round keys and values to float16."""
    put(bundle, draft, tmp_path / "float.edgedec", "keep", bundle)
    tokens = said[1].tokens.tolist()
    expected = torch_logits(bundle, draft, tokens)
    error = np.abs(draft_logits(tmp_path / "float.edgedec", tokens) - expected).mean(axis=1)
    assert np.median(error) < 5e-4 * expected.std()


def test_all_layers_untrained_are_the_target_model(
    bundle: Path, said: list[TextFeatures], tmp_path: Path
) -> None:
    """With the target's own 32-bit weights, logits of the tokens that it can name are the same."""
    copy = trained(bundle, tmp_path, said, plan_of(n_layers=2), 0)
    put(bundle, copy, tmp_path / "copy.edgedec", "keep", bundle)
    tokens = said[1].tokens.tolist()
    target = read_manifest(bundle).target
    model = open_model(bundle, target, 1)
    rows = TokenSequence(model, CONTEXT).forward(TokenTree.chain(tokens), range(len(tokens)))
    expected = rows.logits[:, copy.head_ids].copy()
    release_model(model)
    found = draft_logits(tmp_path / "copy.edgedec", tokens)
    assert np.abs(found - expected).mean() < 0.02 * expected.std()
    assert copy.trained.before is not None
    assert copy.trained.before > 0.9  # the model's own choices, but for those it cannot name


def test_training_helps_and_the_bundle_holds_what_was_learned(
    pair: Path, draft: drafts.TrainedDraft, said: list[TextFeatures]
) -> None:
    before, after = draft.trained.before, draft.trained.measured.by_depth[0]
    assert before is not None
    assert after > before + 0.2
    manifest = read_manifest(pair)
    assert share_drafted(pair, manifest, held_out_of(said), 1) == pytest.approx(after, abs=0.06)
    found = manifest.verification["draft"]
    assert found == {"held_out": round(after, 4), "held_out_before": round(before, 4)}


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_teaches(
    bundle: Path, said: list[TextFeatures], tmp_path: Path, loss: str
) -> None:
    found = trained(bundle, tmp_path, said, plan_of(loss=loss)).trained
    assert found.before is not None
    assert found.measured.by_depth[0] > found.before + 0.1


def test_the_embedding_is_shared_with_the_target(pair: Path, bundle: Path) -> None:
    manifest, before = read_manifest(pair), read_manifest(bundle)
    entry = manifest.models["draft"]
    assert manifest.target == before.target
    assert set(manifest.target.weights) < set(entry.weights)
    assert set(manifest.files) - set(before.files) == set(entry.files) - set(before.files)
    for path in before.files:
        assert (pair / path).samefile(bundle / path)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["draft", "auto", "draft+lookup"])
def test_the_text_is_that_of_plain_decoding(pair: Path, method: str, temperature: float) -> None:
    check_text(pair, method, temperature)


def test_a_killed_training_goes_on_to_the_same_model(
    bundle: Path, draft: drafts.TrainedDraft, said: list[TextFeatures], tmp_path: Path
) -> None:
    for most in (3, 4, 10**9):  # in an epoch, at the end of one, to the end
        again = trained(bundle, tmp_path, said, plan_of(), most)
    assert again.trained.measured == draft.trained.measured
    assert again.trained.before == draft.trained.before
    for name, values in draft.weights.items():
        np.testing.assert_array_equal(again.weights[name], values, err_msg=name)


def test_layers_are_spread_over_all(bundle: Path) -> None:
    origin = drafts.Origin(bundle, read_manifest(bundle))
    assert origin.kept(None) == (0, 1)
    assert origin.kept(1) == (0,)
    for wrong in (0, 3):
        with pytest.raises(ConfigError, match=f"--layers is {wrong}, expected 1 to 2"):
            origin.kept(wrong)


def test_another_model_may_be_the_beginning(
    bundle: Path,
    make_bundle_of: Callable[[int], Path],
    said: list[TextFeatures],
    tmp_path: Path,
) -> None:
    """Whose embedding is copied, as it is packed."""
    other = make_bundle_of(7)
    found = trained(bundle, tmp_path, said, plan_of(n_layers=None), 0, other)
    manifest = put(bundle, found, tmp_path / "pair.edgedec", "keep", other)
    assert not set(manifest.target.weights) & set(manifest.models["draft"].weights)
    tokens = said[1].tokens.tolist()
    expected = torch_logits(other, found, tokens)
    error = np.abs(draft_logits(tmp_path / "pair.edgedec", tokens) - expected).mean(axis=1)
    assert np.median(error) < 5e-4 * expected.std()


def test_a_draft_model_is_replaced(
    pair: Path, draft: drafts.TrainedDraft, bundle: Path, tmp_path: Path
) -> None:
    again = put(pair, draft, tmp_path / "again.edgedec", "int4", pair)
    assert set(again.files) == set(read_manifest(pair).files)
    with edgedec.load(tmp_path / "again.edgedec") as engine:
        assert engine.generate("hello", edgedec.GenerationConfig(method="draft")).token_ids


def test_what_is_asked_for_has_to_make_sense() -> None:
    with pytest.raises(ConfigError, match="got the loss 'l2', expected one of kl, reverse-kl"):
        plan_of(loss="l2")
    with pytest.raises(ConfigError, match="quantised as int8, int4"):
        plan_of(scheme="keep")
    assert list(itertools.islice(LOSSES, 1)) == ["kl"]
