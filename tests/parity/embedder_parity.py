"""What an encoder that makes vectors of texts has to hold, against transformers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import EngineOptions, load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import PortableRunner
from edgedec.models.errors import SessionError, UnsupportedModelError
from edgedec.models.reference import ReferenceModel
from tests.parity.toy_parity import Logits, ToyParity, export_entry

torch = pytest.importorskip("torch", reason="needs the dev extra")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5, 89, 33, 8, 2, 60, 77, 19, 4, 4, 58, 30, 11, 85, 23]
TEXTS = [TOKENS, TOKENS[:3], [5], TOKENS[4:17], TOKENS[::-1], TOKENS[2:4]]
SIZES = {
    "vocab_size": 97, "hidden_size": 40, "intermediate_size": 56, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class EncoderToy:
    """A tiny random encoder of transformers, and its directory."""

    model: Any
    folder: Path

    def rows(self, tokens: Sequence[int]) -> Logits:
        """Returns the last hidden states [T, hidden_size]."""
        with torch.inference_mode():
            output = self.model(torch.tensor([list(tokens)]))
        return np.asarray(output.last_hidden_state[0].numpy())

    def vector(self, tokens: Sequence[int], pooling: str) -> Logits:
        """Returns the pooled hidden states, of length 1."""
        rows = self.rows(tokens)
        pooled = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1]}[pooling]
        return np.asarray(pooled / np.linalg.norm(pooled))


class EmbedderParity(ToyParity):
    """Inherit from it as ``TestParity``."""

    @classmethod
    def make_toy(cls, model: Any, folder: Path) -> EncoderToy:
        return EncoderToy(model, folder)

    @classmethod
    def spread(cls, name: str) -> tuple[float, float]:
        """Norms are called ``LayerNorm`` here."""
        is_norm = "norm" in name.lower() and name.endswith("weight")
        return (cls.NORM_MEAN, 0.3) if is_norm else (0.0, 0.15)

    def close(self, found: Logits, expected: Logits) -> None:
        """Both are equal to float32's rounding, in parts of the spread."""
        np.testing.assert_allclose(found, expected, atol=1e-4 * float(expected.std()))

    def test_reference(self, toy: EncoderToy) -> None:
        rows = ReferenceModel(open_checkpoint(str(toy.folder))).forward(TOKENS).logits
        self.close(rows, toy.rows(TOKENS))

    def test_portable(self, toy: EncoderToy, portable: Path) -> None:
        entry = export_entry(portable)
        runner = PortableRunner(portable / entry.graph, entry.config)
        self.close(runner.compute_logits(TOKENS, range(-1, len(TOKENS) - 1)), toy.rows(TOKENS))

    def test_vectors(self, toy: EncoderToy, portable: Path) -> None:
        with load(portable, EngineOptions(threads=2)) as engine:
            for pooling in ("mean", "cls", "last"):
                found = engine.embed(TEXTS, pooling)
                self.close(found, np.stack([toy.vector(text, pooling) for text in TEXTS]))

    def test_fused_with_float_weights(self, toy: EncoderToy, bundle: Path, tmp_path: Path) -> None:
        """What is left is the KV cache, in halves."""
        export(ExportConfig(str(toy.folder), tmp_path / "b"))
        with load(tmp_path / "b", EngineOptions(threads=2)) as engine:
            found = engine.embed(TEXTS)
        expected = np.stack([toy.vector(text, "mean") for text in TEXTS])
        np.testing.assert_allclose(np.sum(found * expected, axis=1), 1, atol=1e-5)

    def test_fused(self, toy: EncoderToy, bundle: Path) -> None:
        """Texts of different lengths share passes, and have the same bits alone."""
        with load(bundle, EngineOptions(threads=2)) as engine:
            together = engine.embed(TEXTS)
            alone = np.concatenate([engine.embed([text]) for text in TEXTS])
        np.testing.assert_array_equal(together, alone)
        expected = np.stack([toy.vector(text, "mean") for text in TEXTS])
        assert np.sum(together * expected, axis=1).min() > 0.995

    def test_writing_is_refused(self, bundle: Path, toy: EncoderToy, tmp_path: Path) -> None:
        with load(bundle, EngineOptions(threads=2)) as engine:
            for write in (
                lambda: engine.generate("!#"),
                lambda: engine.score("!#"),
                lambda: engine.suggest("!#"),
                lambda: engine.save_session(tmp_path / "s"),
            ):
                with pytest.raises(SessionError, match="makes vectors of texts and writes none"):
                    write()
        wanted = ExportConfig(str(toy.folder), tmp_path / "b", device_target="ort")
        with pytest.raises(UnsupportedModelError, match="export with --target cpu or portable"):
            export(wanted)
