"""What encoder-decoder families have to hold, against transformers: as `FamilyParity`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.autocomplete import Autocompleter
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import FusedRunner, PortableRunner
from edgedec.export.verifying.verify import compare_logits
from edgedec.models.errors import ConfigError, SessionError, UnsupportedModelError
from edgedec.models.reference import ReferenceModel
from edgedec.models.source_tokens import source_tokens
from edgedec.runtime.sequences.passes import Pass, compute
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.parity.family_parity import MAX_GAP
from tests.parity.toy_parity import Logits, RowParity, continued, export_entry, same_bits

torch = pytest.importorskip("torch", reason="needs the dev extra")
pytest.importorskip("transformers", reason="needs the dev extra")

VOCAB = 97
SOURCE = [3, 80, 7, 7, 41, 5, 12, 66, 5, 91, 33, 8, 2, 60, 77, 19, 4, 4, 58, 30, 11, 95, 23, 1]
OTHERS = ([9, 4, 71, 1], [44, 44, 44, 8, 90, 13, 62, 1], [*SOURCE[:-1], 50])
WRITTEN = [0, 5, 9, 33, 3, 8, 70, 55, 12, 6, 4, 3, 90, 21, 60, 2, 8, 9, 44, 50, 31, 7]
TREE = TokenTree((5, 9, 8, 6, 4), (-1, 0, 0, 1, 2))
BRANCHES = (([5, 9, 6], [0, 1, 3]), ([5, 8, 4], [0, 2, 4]))


@dataclasses.dataclass(frozen=True)
class Toy:
    """A tiny random model of transformers, and its directory."""

    model: Any
    folder: Path

    def logits(self, source: Sequence[int], written: Sequence[int]) -> Logits:
        with torch.inference_mode():
            found = self.model(
                input_ids=torch.tensor([source]),
                attention_mask=torch.ones(1, len(source), dtype=torch.long),
                decoder_input_ids=torch.tensor([written]),
            )
        return np.asarray(found.logits[0].numpy())


class EncoderParity(RowParity):
    """Inherit from it as ``TestParity``."""

    TEXT = WRITTEN

    @classmethod
    def make_toy(cls, model: Any, folder: Path) -> Toy:
        return Toy(model, folder)

    @classmethod
    def begin(cls, sequence: TokenSequence) -> int:
        """Reads the source."""
        begin(sequence, SOURCE)
        return len(SOURCE)

    def test_the_encoder(self, toy: Toy) -> None:
        encoder = open_checkpoint(str(toy.folder)).config.encoder
        assert encoder is not None
        assert encoder.is_encoder

    def test_reference(self, toy: Toy) -> None:
        reference = ReferenceModel(open_checkpoint(str(toy.folder)))
        reference.read_source(SOURCE)
        logits = reference.forward(WRITTEN).logits
        np.testing.assert_allclose(logits, toy.logits(SOURCE, WRITTEN), atol=1e-4)

    def test_portable(self, toy: Toy, portable: Path) -> None:
        entry = export_entry(portable)
        runner = PortableRunner(portable / entry.graph, entry.config)
        runner.read_source(portable / str(entry.encoder), SOURCE)
        logits = runner.compute_logits(WRITTEN, range(-1, len(WRITTEN) - 1))
        expected = toy.logits(SOURCE, WRITTEN)
        np.testing.assert_allclose(logits, expected, atol=min(1e-4, 1e-3 * expected.std()))
        n = len(WRITTEN) - 4
        runner.compute_logits(WRITTEN[:n], range(-1, n - 1))
        logits = runner.compute_logits(TREE.tokens, TREE.parents, n_past=n)
        for branch, rows in BRANCHES:
            expected = toy.logits(SOURCE, [*WRITTEN[:n], *branch])[-3:]
            np.testing.assert_allclose(logits[rows], expected, atol=1e-4)

    @pytest.mark.parametrize("kv_format", ["float16", "int8", "k5v4"])
    def test_fused_with_float_weights(
        self, toy: Toy, bundle: Path, tmp_path: Path, kv_format: str
    ) -> None:
        """What is left is the KV cache: nothing that quantising could hide."""
        config = ExportConfig(str(toy.folder), tmp_path / "b", kv_format=kv_format)
        entry = export(config).manifest.target
        runner = FusedRunner(tmp_path / "b" / entry.graph, entry.config, 50)
        runner.read_source(tmp_path / "b" / str(entry.encoder), SOURCE)
        logits = runner.compute_logits(WRITTEN, range(-1, len(WRITTEN) - 1))
        found = compare_logits(logits, toy.logits(SOURCE, WRITTEN))
        most = {"float16": 1e-5, "int8": 1e-3, "k5v4": 0.1}
        assert found["kl_nats"] < most[kv_format], found

    def test_fused(self, toy: Toy, sequence: TokenSequence) -> None:
        for source in (SOURCE, *OTHERS):
            begin(sequence, source)
            logits = sequence.forward(TokenTree.chain(WRITTEN), range(len(WRITTEN))).logits
            found = compare_logits(logits, toy.logits(source, WRITTEN))
            assert found["kl_nats"] < 1e-3, found

    def test_texts_of_several_sources_share_passes(self, engine: Engine) -> None:
        """Those of one source begin alike, and rows that both read are not computed again."""
        sources = (SOURCE, *OTHERS, SOURCE)
        alone = [one_by_one(engine.new_sequence(), source) for source in sources]
        together = [engine.new_sequence() for _ in sources]
        for sequence, source in zip(together[:-1], sources, strict=False):
            begin(sequence, source)
        together[-1].begin_like(together[0], len(SOURCE))
        for n, stop in ((0, 1), (1, 6), (6, 7), (7, 20)):
            tree = TokenTree.chain(WRITTEN[n:stop])
            found = compute([Pass(s, tree, range(len(tree))) for s in together])
            for sequence, rows, expected in zip(together, found, alone, strict=True):
                same_bits(rows.logits, expected[n:stop])
                sequence.commit(range(len(tree)))
        for sequence in together:
            sequence.close()

    def test_a_source_stays_whole(self, sequence: TokenSequence) -> None:
        one_by_one(sequence, SOURCE)
        n = len(SOURCE)
        assert sequence.n_source == n
        assert sequence.nbytes > sequence.state.nbytes(n) > 0
        assert [sequence.reachable(i) for i in (n + 3, n, n - 1, 1)] == [n + 3, n, 0, 0]
        with pytest.raises(SessionError, match="truncate to 5"):
            sequence.truncate(5)
        sequence.truncate(0)
        tokens = source_tokens(SOURCE, VOCAB)
        for part in (tokens[:5], [*tokens, 0]):
            with pytest.raises(SessionError, match="no whole source"):
                sequence.forward(TokenTree.chain(part), [])
        with pytest.raises(SessionError, match="expected none"):
            sequence.forward(TokenTree.chain(tokens), [0])

    def test_saved_sessions(self, engine: Engine, bundle: Path, tmp_path: Path) -> None:
        """A saved text goes on as it would have, and its source is not read again."""
        config = GenerationConfig(max_new_tokens=12, ignore_eos=True)
        written = engine.generate(SOURCE, config).token_ids
        engine.save_session(tmp_path / "s")
        with load(bundle, EngineOptions(threads=2)) as other:
            n_tokens = other.load_session(tmp_path / "s")
            text = [*source_tokens(SOURCE, VOCAB), 0, *written]
            assert n_tokens == len(text) - 1
            found = other.generate(text, config)
            assert found.stats.n_reused_tokens == n_tokens
            assert found.token_ids == engine.generate(text, config).token_ids

    def test_greedy_tokens(self, toy: Toy, engine: Engine) -> None:
        config = GenerationConfig(max_new_tokens=40, ignore_eos=True)
        for source in (SOURCE, *OTHERS):
            written = [0, *engine.generate(source, config).token_ids]
            expected = toy.logits(source, written[:-1])
            gaps = expected.max(axis=1) - expected[np.arange(40), written[1:]]
            assert gaps.max() < MAX_GAP
            assert np.mean(gaps == 0) > 0.7

    def test_portable_greedy_tokens(self, toy: Toy, portable: Path) -> None:
        config = GenerationConfig(max_new_tokens=30, ignore_eos=True)
        with load(portable, EngineOptions(threads=2)) as engine:
            for source in (SOURCE, *OTHERS):
                found = list(engine.generate(source, config).token_ids)
                assert found == self.generated(toy, source, 30)

    @staticmethod
    def generated(toy: Toy, source: Sequence[int], n: int) -> list[int]:
        """Returns the tokens that transformers writes."""
        mask = torch.ones(1, len(source), dtype=torch.long)
        limits = {"max_new_tokens": n, "min_new_tokens": n, "eos_token_id": VOCAB - 1}
        ids = toy.model.generate(
            torch.tensor([source]), attention_mask=mask, do_sample=False, **limits
        )
        found: list[int] = ids[0].tolist()[1:]
        return found

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_drafting_gives_the_tokens_of_plain_decoding(
        self, bundle: Path, temperature: float
    ) -> None:
        with load(bundle, EngineOptions(threads=2)) as engine:
            for source in (SOURCE, *OTHERS):
                found = {}
                for method in ("plain", "lookup", "recycling", "auto"):
                    config = GenerationConfig(
                        sampling=SamplingConfig(temperature=temperature),
                        max_new_tokens=30,
                        method=method,
                        ignore_eos=True,
                    )
                    found[method] = engine.generate(source, config).token_ids
                assert len(found["plain"]) == 30
                assert found == dict.fromkeys(found, found["plain"])

    def test_other_targets_are_refused(self, toy: Toy, tmp_path: Path) -> None:
        config = ExportConfig(str(toy.folder), tmp_path / "b", device_target="ort")
        with pytest.raises(UnsupportedModelError, match="--target cpu or portable"):
            export(config)

    def test_what_an_encoder_rules_out_is_refused(self, toy: Toy, tmp_path: Path) -> None:
        config = ExportConfig(str(toy.folder), tmp_path / "b", hidden_layers=(1,))
        with pytest.raises(ConfigError, match="has an encoder: leave it out"):
            export(config)

    def test_what_goes_on_from_a_text_is_refused(self, engine: Engine) -> None:
        with pytest.raises(SessionError, match="have no probabilities"):
            engine.score(SOURCE)
        with pytest.raises(SessionError, match="returns no hidden states"):
            engine.embed([SOURCE])
        with pytest.raises(ConfigError, match="cannot go on where the cursor is"):
            Autocompleter(engine)
        with pytest.raises(SessionError, match="holds token 400, expected 0 to 96"):
            engine.generate([3, 400])

    def test_continuations_of_a_source_are_scored(self, toy: Toy, engine: Engine) -> None:
        given = [[5, 9, 33], [5, 8]]
        found = engine.score_continuations(SOURCE, given)
        for one, total in zip(given, found, strict=True):
            logits = toy.logits(SOURCE, [0, *one[:-1]]).astype(np.float64)
            log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            assert abs(log_probs[range(len(one)), one].sum() - total) < 0.3

    def test_it_drafts_for_nobody(self, bundle: Path) -> None:
        with pytest.raises(ConfigError, match="leave the draft model out"):
            load(bundle, EngineOptions(draft=str(bundle)))


def begin(sequence: TokenSequence, source: Sequence[int]) -> None:
    """Makes a source the only text of ``sequence``."""
    sequence.truncate(0)
    tokens = source_tokens(source, VOCAB)
    sequence.forward(TokenTree.chain(tokens), [])
    sequence.commit(range(len(tokens)))


def one_by_one(sequence: TokenSequence, source: Sequence[int]) -> Logits:
    """Returns the logits of every token of `WRITTEN`, each in a pass of its own; all stay."""
    begin(sequence, source)
    return continued(sequence, WRITTEN)
