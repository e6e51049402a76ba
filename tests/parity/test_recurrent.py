"""Models with a recurrence in an engine: speculation, sessions and prefix reuse are exact."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export import kv_panels
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library
from edgedec.models.errors import BundleError, EdgedecError
from edgedec.models.graph import STATE_LEVELS, STATE_PLACE
from edgedec.runtime.backends.graph_checks import check_recurrent_layers
from edgedec.runtime.sequences import state_checkpoints as checkpoints
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.prefill import feed
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.models import (
    test_falcon_h1,
    test_granitemoehybrid,
    test_lfm2,
    test_nemotron_h,
    test_qwen3_next,
)
from tests.parity.family_parity import TOKENS, Logits, Toy
from tests.parity.recurrent_parity import TREE, StateParity, way_to
from tests.parity.toy_parity import RING_ROOM, same_bits

FAMILIES = {
    "lfm2": (test_lfm2.TestParity, ("cpu", "portable")),
    "granitemoehybrid": (test_granitemoehybrid.TestParity, ("cpu", "portable")),
    "granitemoehybrid with experts": (test_granitemoehybrid.TestParityWithExperts, ("cpu",)),
    "falcon_h1": (test_falcon_h1.TestParity, ("cpu", "portable")),
    "nemotron_h": (test_nemotron_h.TestParity, ("cpu", "portable")),
    "qwen3_5": (test_qwen3_next.TestQwen35, ("cpu", "portable")),
    "qwen3_next": (test_qwen3_next.TestParity, ("cpu", "portable")),
}
CONTEXT, CHECKPOINT_TOKENS = 400, 32
TEXT = [int(i) for i in np.random.default_rng(5).integers(0, 90, 300)]
PROMPT = "ABCABCDEFABCABCDEF"

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]


BUNDLES = [(family, target) for family in FAMILIES for target in FAMILIES[family][1]]


@pytest.fixture(scope="module", params=BUNDLES, ids=", ".join)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a family for a target, which keeps few rows to go back to."""
    family, target = request.param
    cls, _ = FAMILIES[family]
    longer = type("Longer", (cls,), {"SIZES": {**cls.SIZES, "max_position_embeddings": CONTEXT}})
    toy = longer.draw(tmp_path_factory.mktemp(family))
    path = tmp_path_factory.mktemp("bundle") / "b"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kv_panels, "RING_ROOM", 40)
        export(ExportConfig(str(toy.folder), path, device_target=target))
    return path


@pytest.fixture
def engine(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(checkpoints, "CHECKPOINT_TOKENS", CHECKPOINT_TOKENS)
    with load(bundle, EngineOptions(threads=2, prefix_cache_mb=64)) as engine:
        yield engine


def is_exact(bundle: Path) -> bool:
    """Whether rows are the same to the last bit, whatever else is in the pass."""
    from edgedec.models.manifest import read_manifest

    return read_manifest(bundle).target.contract.can.row_gap == 0


@pytest.mark.parametrize("n_tokens", [40, 150, 300])
def test_rewinding_far(bundle: Path, engine: Engine, n_tokens: int) -> None:
    """To any token: what is left is one that a pass may follow, and what follows is the same."""
    sequence = engine.new_sequence()
    text = TEXT[:n_tokens]
    whole = logits_of(sequence, text)
    for n in range(n_tokens - 1, -1, -23):
        run_passes(feed(sequence, text))
        n_left = sequence.rewind(n)
        assert 0 <= n - n_left < CHECKPOINT_TOKENS + 30  # checkpoints are taken between passes
        again = logits_of(sequence, text, n_left)
        np.testing.assert_allclose(again, whole[n_left:], atol=1e-4)
        if is_exact(bundle):
            same_bits(again, whole[n_left:])


def logits_of(sequence: TokenSequence, text: list[int], start: int = 0) -> np.ndarray:
    """Returns the logits of a text's tokens from ``start`` on, in passes of 30."""
    if start == 0:
        sequence.truncate(0)
    rows = []
    for i in range(start, len(text), 30):
        tree = TokenTree.chain(text[i : i + 30])
        rows.append(sequence.forward(tree, range(len(tree))).logits.copy())
        sequence.commit(range(len(tree)))
    return np.concatenate(rows)


def test_a_tree_behind_a_long_text(engine: Engine) -> None:
    """Rows go round the memory that keeps them; every path is that of a chain."""
    sequence = engine.new_sequence()
    run_passes(feed(sequence, TEXT[:200]))
    n = sequence.n_tokens
    for leaf in (7, 13, 15):
        path = way_to(leaf)
        tokens = [TREE.tokens[i] for i in path]
        sequence.rewind(n)
        chain = sequence.forward(TokenTree.chain([*tokens, 4]), range(len(path) + 1)).logits.copy()
        tree = sequence.forward(TREE, range(len(TREE))).logits
        np.testing.assert_allclose(tree[path], chain[:-1], atol=1e-4)
        sequence.commit(path)
        last = sequence.forward(TokenTree.chain([4]), [0]).logits
        np.testing.assert_allclose(last, chain[-1:], atol=1e-4)


SAMPLINGS = [
    SamplingConfig(),
    SamplingConfig(frequency_penalty=1.0),
    SamplingConfig(temperature=0.9),
]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_speculation_gives_the_tokens_of_plain_decoding(
    engine: Engine, sampling: SamplingConfig
) -> None:
    found = {}
    for method in ("plain", "lookup", "trigram", "auto"):
        config = GenerationConfig(
            max_new_tokens=60,
            method=method,
            sampling=sampling,
            seed=1,
            ignore_eos=True,
        )
        found[method] = engine.generate(PROMPT, config).token_ids
    assert len(found["plain"]) > 30
    assert found == dict.fromkeys(found, found["plain"])


def test_a_session_is_taken_up(bundle: Path, engine: Engine, tmp_path: Path) -> None:
    plain = GenerationConfig(max_new_tokens=40, method="plain")
    text = PROMPT * 9
    engine.generate(text, plain)
    engine.save_session(tmp_path / "session", engine.encode(text))
    whole = engine.generate(text + "XYZ", plain)
    with load(bundle, EngineOptions(threads=2)) as other:
        other.load_session(tmp_path / "session")
        taken_up = other.generate(text + "XYZ", plain)
    assert taken_up.token_ids == whole.token_ids
    assert taken_up.stats.n_reused_tokens >= 100


def test_prompts_that_part_reuse_what_they_share(engine: Engine) -> None:
    plain = GenerationConfig(max_new_tokens=5, method="plain")
    shared, ends = PROMPT * 6, ("XYZ" * 20, "UVW" * 30, "RST" * 10)
    expected = {}
    for end in ends:
        engine.forget_prompts()
        expected[end] = engine.generate(shared + end, plain).token_ids
    engine.forget_prompts()
    for end in (*ends, *ends):
        found = engine.generate(shared + end, plain)
        assert found.token_ids == expected[end]
    assert found.stats.n_reused_tokens >= len(shared)


def test_what_recurrent_layers_cannot_do_is_refused(engine: Engine) -> None:
    with pytest.raises(EdgedecError, match="exit"):
        engine.generate(PROMPT, GenerationConfig(method="exit"))


def test_a_graph_without_its_states_is_refused(bundle: Path) -> None:
    from edgedec.models.manifest import read_manifest

    entry = read_manifest(bundle).target
    contract, config = entry.contract, entry.config
    check_recurrent_layers(Path("g.onnx"), contract, config)
    *layers, last = config.layers
    mixer: Any = "attention" if last.is_recurrent else "recurrence"
    others = dataclasses.replace(config, layers=(*layers, dataclasses.replace(last, mixer=mixer)))
    with pytest.raises(BundleError, match=r"g.onnx keeps a state in the layers .* export the"):
        check_recurrent_layers(Path("g.onnx"), contract, others)
    for name in {STATE_PLACE, STATE_LEVELS} & set(contract.inputs):
        less = dataclasses.replace(
            contract, inputs=tuple(port for port in contract.inputs if port != name)
        )
        with pytest.raises(BundleError, match=f"g.onnx lacks the input {name}, which its"):
            check_recurrent_layers(Path("g.onnx"), less, config)


def test_the_next_start_goes_on_from_the_disk(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    plain = GenerationConfig(max_new_tokens=40, method="plain")
    text, options = PROMPT * 9, EngineOptions(threads=2, prefix_disk_mb=10)
    with load(bundle, options) as engine:
        engine.generate(text, plain)
    with load(bundle, EngineOptions(threads=2)) as engine:
        expected = engine.generate(text + "XYZ", plain)
    with load(bundle, options) as engine:
        found = engine.generate(text + "XYZ", plain)
    assert found.token_ids == expected.token_ids
    assert found.stats.n_reused_tokens == 128


class TestPortableStates(StateParity):
    """As of the target cpu, but for bits: sums of passes of other sizes run in other orders."""

    @pytest.fixture(scope="class", params=[f for f in FAMILIES if "portable" in FAMILIES[f][1]])
    @classmethod
    def toy(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Toy:
        return FAMILIES[request.param][0].draw(tmp_path_factory.mktemp("family"))

    @pytest.fixture(scope="class")
    @classmethod
    def sequence(
        cls, toy: Toy, tmp_path_factory: pytest.TempPathFactory
    ) -> Iterator[TokenSequence]:
        path = tmp_path_factory.mktemp("portable") / "b"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv_panels, "RING_ROOM", RING_ROOM)
            export(ExportConfig(str(toy.folder), path, device_target="portable"))
        with load(path, EngineOptions(threads=2)) as engine:
            yield engine.new_sequence()

    def same(self, a: Logits, b: Logits) -> None:
        np.testing.assert_allclose(a, b, atol=1e-4)

    def test_greedy_tokens(self, toy: Toy, sequence: TokenSequence) -> None:
        """Those of transformers, which are no more than rounding apart."""
        sequence.truncate(0)
        tokens, pending = list(TOKENS[:7]), list(TOKENS[:7])
        for _ in range(40):
            rows = sequence.forward(TokenTree.chain(pending), [len(pending) - 1])
            sequence.commit(range(len(pending)))
            pending = [int(rows.logits[0].argmax())]
            tokens += pending
        expected = toy.logits(tokens[:-1])[6:]
        gaps = expected.max(axis=1) - expected[np.arange(40), tokens[7:]]
        assert gaps.max() < 1e-4
