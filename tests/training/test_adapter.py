"""Adapters of early exits: the graph against torch, what they read, the text they leave."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import edgedec
from edgedec.models.draft_heads import ADAPTER
from edgedec.models.hidden_states import normed
from edgedec.models.manifest import fingerprint_of, read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.heads.head_check import share_found

torch = pytest.importorskip("torch", reason="needs the extra train")

from edgedec.training.features.feature_file import TextFeatures, held_out_of  # noqa: E402
from edgedec.training.heads import train_head as heads  # noqa: E402
from edgedec.training.heads.torch_head import TorchHead  # noqa: E402

from .head_parts import CONTEXT, check_text, feature_file, plan_of  # noqa: E402

pytestmark = pytest.mark.slow

EXIT = 1


@pytest.fixture(scope="module")
def texts_at_exit(bundle: Path, texts: list[TextFeatures]) -> list[TextFeatures]:
    """The texts with the hidden states of one layer, the first that was read."""
    size = read_manifest(bundle).target.config.hidden_size
    return [dataclasses.replace(text, hidden=text.hidden[:, :size]) for text in texts]


@pytest.fixture(scope="module")
def adapter(
    bundle: Path, texts_at_exit: list[TextFeatures], tmp_path_factory: pytest.TempPathFactory
) -> heads.TrainedHead:
    plan = plan_of(ADAPTER, n_steps=1)
    file = feature_file(tmp_path_factory.mktemp("features"), texts_at_exit)
    return heads.train_head(bundle, read_manifest(bundle), file, 1, plan, lambda *_: None)


def put(bundle: Path, adapter: heads.TrainedHead, destination: Path, scheme: str) -> Path:
    manifest = read_manifest(bundle)
    fingerprint = fingerprint_of(manifest, manifest.target_name)
    entry = heads.head_entry(adapter, manifest.target, fingerprint, (EXIT,), scheme, "texts")
    heads.put_head(bundle, manifest, adapter, entry, destination, False)
    return destination


@pytest.fixture(scope="module")
def exiting(
    bundle: Path, adapter: heads.TrainedHead, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return put(bundle, adapter, tmp_path_factory.mktemp("exit") / "tiny.edgedec", "int8")


def graph_logits(bundle: Path, text: TextFeatures, shift: int) -> np.ndarray:
    """Returns the logits of the adapter's graph, features moved ``shift`` tokens back."""
    entry = read_manifest(bundle).head
    assert entry is not None
    n = len(text.tokens)
    features = np.zeros((n, entry.head.contract.can.features), np.float32)
    features[shift:] = text.hidden[: n - shift].astype(np.float32)
    model = open_model(bundle, entry.head, 1)
    sequence, chain = TokenSequence(model, CONTEXT), TokenTree.chain(text.tokens.tolist())
    logits = sequence.run(Pass(sequence, chain, range(n), features=features)).logits.copy()
    release_model(model)
    return logits


def test_the_graph_computes_what_torch_does(
    bundle: Path, adapter: heads.TrainedHead, texts_at_exit: list[TextFeatures], tmp_path: Path
) -> None:
    """Float weights on both sides; the kernels round keys and values to float16."""
    text, path = texts_at_exit[1], put(bundle, adapter, tmp_path / "float.edgedec", "keep")
    model = TorchHead(adapter.config, adapter.weights, len(text.tokens), ADAPTER)
    with torch.no_grad():
        hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
        tokens = torch.zeros(hidden.shape[:2], dtype=torch.int64)
        expected = model(tokens, hidden, 1)[0][0].numpy()
    same, shifted = (np.abs(graph_logits(path, text, n) - expected).mean(axis=1) for n in (0, 1))
    assert np.median(same) < 5e-4 * expected.std()
    assert np.median(shifted) > 100 * np.median(same)  # it reads its own token's


def test_it_learns_and_the_bundle_holds_what_it_learned(
    exiting: Path, adapter: heads.TrainedHead, texts_at_exit: list[TextFeatures]
) -> None:
    manifest = read_manifest(exiting)
    found = share_found(exiting, manifest, held_out_of(texts_at_exit), 1)
    assert manifest.head is not None
    assert found == pytest.approx(manifest.head.held_out[0], abs=0.05)
    assert found > 0.5


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["exit", "exit+lookup", "auto"])
def test_the_text_is_that_of_plain_decoding(exiting: Path, method: str, temperature: float) -> None:
    check_text(exiting, method, temperature)


def test_it_reads_tokens_one_after_the_other_with_their_own_states(
    exiting: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever came true, and in a request that goes on where another ended."""
    reads: list[tuple[list[int], np.ndarray]] = []
    begin = TokenSequence.begin

    def watched(sequence: TokenSequence, wanted: Pass) -> None:
        if wanted.features is not None:
            for i in range(wanted.n_known, len(wanted.tree)):
                line = [*sequence.tokens, *line_of(wanted.tree, i)]
                reads.append((line, wanted.features[i - wanted.n_known].copy()))
        begin(sequence, wanted)

    request = GenerationConfig(
        max_new_tokens=16, ignore_eos=True, method="exit", sampling=SamplingConfig()
    )
    epsilon = read_manifest(exiting).target.config.rms_norm_eps
    with edgedec.load(exiting) as engine:
        text = list(engine.encode("1212 1212 hello he"))
        for more in ([], [5, 6, 7]):
            text += more
            reads.clear()
            with monkeypatch.context() as patch:
                patch.setattr(TokenSequence, "begin", watched)
                text += engine.generate(text, request).token_ids
            assert check_reads(engine.new_sequence(), text, reads, epsilon) >= 16


def check_reads(
    sequence: TokenSequence,
    text: list[int],
    reads: list[tuple[list[int], np.ndarray]],
    epsilon: float,
) -> int:
    """Checks the states of all rows, drafted ones, too; returns how many were of the text."""
    starts = {i for i in range(len(text)) if any(text[i : i + len(r)] == r for r, _ in reads[:1])}
    for start in sorted(starts):
        n_found = 0
        for line, features in reads:
            chain = TokenTree.chain([*text[:start], *line])
            sequence.truncate(0)
            hidden = sequence.run(Pass(sequence, chain, (), (EXIT,))).hidden[EXIT][-1:]
            if not np.array_equal(features, normed(hidden, epsilon)[0]):
                break
            n_found += text[start : start + len(line)] == line
        else:
            return n_found
    raise AssertionError("rows were read with states of other tokens")


def line_of(tree: TokenTree, row: int) -> Sequence[int]:
    """Returns the tokens from the root of ``tree`` to ``row``."""
    line: list[int] = []
    while row >= 0:
        line.insert(0, tree.tokens[row])
        row = tree.parents[row]
    return line
