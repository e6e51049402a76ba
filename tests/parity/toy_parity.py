"""What tests of all kinds of families share: a tiny random model, its bundles, what it refuses."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from edgedec import Engine, EngineOptions, load
from edgedec.export import kv_panels
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

torch = pytest.importorskip("torch", reason="needs the dev extra")

Logits = npt.NDArray[np.float32]

RING_ROOM = 20
"""Rows of a ring besides its window's: few, so that these texts go round it."""
TOKENIZER = {
    "version": "1.0",
    "model": {"type": "BPE", "vocab": {chr(33 + i): i for i in range(90)}, "merges": []},
}


class ToyParity:
    """A tiny random model of transformers and its bundles.

    EXPECTED: fields of our config. REFUSED: keys of config.json with values that are not supported.
    SEED: of the weights. NORM_MEAN: of norm weights.
    """

    EXPECTED: ClassVar[dict[str, Any]] = {}
    REFUSED: ClassVar[dict[str, Any]] = {}
    SEED: ClassVar[int] = 3
    NORM_MEAN: ClassVar[float] = 1.0

    @classmethod
    def make_model(cls) -> Any:
        """Returns the model, its weights not yet drawn."""
        raise NotImplementedError

    @classmethod
    def make_toy(cls, model: Any, folder: Path) -> Any:
        """Returns what computes the logits that are expected."""
        raise NotImplementedError

    @classmethod
    def save(cls, model: Any, folder: Path) -> None:
        """Writes config.json and weights as the family's publisher has them."""
        model.save_pretrained(folder)

    @classmethod
    def spread(cls, name: str) -> tuple[float, float]:
        """Returns mean and standard deviation of what a weight is drawn from."""
        return (cls.NORM_MEAN, 0.3) if "norm" in name else (0.0, 0.11)

    @classmethod
    def draw(cls, folder: Path) -> Any:
        """Returns the model with random weights, saved in ``folder``."""
        torch.manual_seed(cls.SEED)
        model = cls.make_model().eval()
        model.config._attn_implementation = "eager"
        for name, parameter in model.named_parameters():
            mean, std = cls.spread(name)
            torch.nn.init.normal_(parameter, mean=mean, std=std)
        cls.save(model, folder)
        (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
        return cls.make_toy(model, folder)

    @pytest.fixture(scope="class")
    @classmethod
    def toy(cls, tmp_path_factory: pytest.TempPathFactory) -> Any:
        return cls.draw(tmp_path_factory.mktemp("family"))

    @pytest.fixture(scope="class")
    @classmethod
    def bundle(cls, toy: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The fused bundle, 8-bit weights."""
        if not has_library():
            pytest.skip("the kernel library is not built")
        path = tmp_path_factory.mktemp("fused") / "b"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(kv_panels, "RING_ROOM", RING_ROOM)
            export(ExportConfig(str(toy.folder), path, device_target="cpu", quantization="int8"))
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def portable(cls, toy: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
        path = tmp_path_factory.mktemp("portable") / "b"
        export(ExportConfig(str(toy.folder), path, device_target="portable"))
        return path

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, bundle: Path) -> Iterator[Engine]:
        with load(bundle, EngineOptions(threads=2)) as engine:
            yield engine

    @pytest.fixture(scope="class")
    @classmethod
    def sequence(cls, engine: Engine) -> TokenSequence:
        return engine.new_sequence()

    def test_config(self, toy: Any) -> None:
        config = open_checkpoint(str(toy.folder)).config
        assert {name: getattr(config, name) for name in self.EXPECTED} == self.EXPECTED
        assert type(config).from_dict(config.canonical()) == config

    def test_variants_are_refused(self, toy: Any, tmp_path: Path) -> None:
        for file in toy.folder.iterdir():
            (tmp_path / file.name).write_bytes(file.read_bytes())
        fields = json.loads((toy.folder / "config.json").read_text())
        for key, value in self.REFUSED.items():
            changed = {**copy.deepcopy(fields), key: value}
            (tmp_path / "config.json").write_text(json.dumps(changed))
            message = f"{key}.* is .*, (only .* supported|expected )"
            with pytest.raises(UnsupportedModelError, match=message):
                open_checkpoint(str(tmp_path))


class RowParity(ToyParity):
    """Rows of the fused graph, which depend on what is before them and on nothing else.

    TEXT: what is computed behind a beginning that `begin` computes.
    """

    TEXT: ClassVar[list[int]] = []

    @classmethod
    def begin(cls, sequence: TokenSequence) -> int:
        """Makes the beginning the only text of ``sequence``; returns how many tokens that are."""
        sequence.truncate(0)
        return 0

    def one_by_one(self, sequence: TokenSequence) -> tuple[Logits, int]:
        """Returns the logits of the text, a pass for each token, and the tokens before it."""
        n_before = self.begin(sequence)
        return continued(sequence, self.TEXT), n_before

    def test_rows_do_not_depend_on_their_company(self, sequence: TokenSequence) -> None:
        alone, n_before = self.one_by_one(sequence)
        for m in (1, 2, 3, 5, 9, len(self.TEXT) - 4):
            sequence.truncate(n_before + 4)
            rows = sequence.forward(TokenTree.chain(self.TEXT[4 : 4 + m]), range(m)).logits
            same_bits(rows, alone[4 : 4 + m])

    def test_a_branch_equals_its_chain(self, sequence: TokenSequence) -> None:
        (alone, n_before), n = self.one_by_one(sequence), len(self.TEXT) - 6
        sequence.truncate(n_before + n)
        a, b, c, d, e = self.TEXT[n : n + 5]
        tree = TokenTree((a, 9, b, 7, c), (-1, -1, 0, 1, 2))
        same_bits(sequence.forward(tree, [0, 2, 4]).logits, alone[n : n + 3])
        sequence.commit([0, 2, 4])
        same_bits(sequence.forward(TokenTree.chain([d, e]), [0, 1]).logits, alone[n + 3 : n + 5])

    def test_sessions(self, sequence: TokenSequence) -> None:
        (alone, n_before), n = self.one_by_one(sequence), len(self.TEXT) - 3
        sequence.truncate(n_before + n)
        state = sequence.snapshot()
        sequence.truncate(0)
        sequence.restore(state)
        same_bits(sequence.forward(TokenTree.chain(self.TEXT[n:]), range(3)).logits, alone[n:])


def continued(sequence: TokenSequence, tokens: Sequence[int]) -> Logits:
    """Returns the logits of every token, each in a pass of its own; all are committed."""
    rows = []
    for token in tokens:
        rows.append(sequence.forward(TokenTree.chain([token]), [0]).logits[0].copy())
        sequence.commit([0])
    return np.stack(rows)


def same_bits(a: Logits, b: Logits) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


def export_entry(bundle: Path) -> Any:
    """Returns what a bundle states of its target model."""
    return read_manifest(bundle).target
