"""What a family that fills masks in has to hold, against transformers' modules with a full mask."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from family_parity import (
    SIZES,
    TOKENS,
    GgufWriting,
    llama_cpp_logits,
    torch,
    transformers,
)
from unmask_oracle import unmasked

from edgedec import EngineOptions, GenerationConfig, load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export
from edgedec.export.to_onnx.runners import FusedRunner, PortableRunner
from edgedec.export.verifying.verify import compare_logits
from edgedec.models.errors import SessionError, UnsupportedModelError
from edgedec.models.reference import ReferenceModel
from edgedec.runtime.config import UnmaskConfig
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from tests.parity.toy_parity import Logits, ToyParity, export_entry

MASK = 96
N_TOKENS = len(TOKENS)


@dataclasses.dataclass(frozen=True)
class FullMaskToy:
    """A tiny random decoder of transformers whose rows see all others, and its directory.

    shift: how many places before a token the row with its logits is.
    """

    model: Any
    folder: Path
    shift: int = 0

    def rows(self, tokens: Sequence[int]) -> Logits:
        """Returns the logits row of each token [T, V]."""
        with torch.inference_mode():
            seen = torch.zeros((1, 1, len(tokens), len(tokens)))
            output = self.model(torch.tensor([list(tokens)]), attention_mask=seen)
        return np.asarray(output.logits[0].numpy())

    def cached_rows(self, tokens: Sequence[int], places: Sequence[int], cache: Any) -> Logits:
        """Returns the logits rows of ``tokens``, which see, and join, those in ``cache``."""
        n = len(tokens)
        seen = torch.zeros((1, 1, n, cache.get_seq_length() + n))
        with torch.inference_mode():
            output = self.model(
                torch.tensor([list(tokens)]),
                attention_mask=seen,
                position_ids=torch.tensor([list(places)]),
                past_key_values=cache,
            )
        return np.asarray(output.logits[0].numpy())


class BidirectionalParity(GgufWriting, ToyParity):
    """Inherit from it as ``TestParity``.

    SIZES: of the model, by the names of transformers. ARCHITECTURE: of GGUF files. SHIFT: how many
    places before a token the row with its logits is.
    """

    SIZES: ClassVar[dict[str, Any]] = {**SIZES, "hidden_size": 48}
    ARCHITECTURE: str = ""
    SHIFT: int = 0
    SEED = 5

    @classmethod
    def make_toy(cls, model: Any, folder: Path) -> FullMaskToy:
        return FullMaskToy(model, folder, cls.SHIFT)

    def test_what_fills_masks_in(self, toy: FullMaskToy) -> None:
        config = open_checkpoint(str(toy.folder)).config
        assert (config.stack, config.mask_token) == ("masked", MASK)
        assert config.predicts_next == (self.SHIFT == 1)

    def test_reference(self, toy: FullMaskToy) -> None:
        logits = ReferenceModel(open_checkpoint(str(toy.folder))).forward(TOKENS).logits
        np.testing.assert_allclose(logits, toy.rows(TOKENS), atol=1e-4)

    def test_gguf(self, toy: FullMaskToy, tmp_path: Path) -> None:
        checkpoint = open_checkpoint(str(self.write_gguf(toy, tmp_path / "tiny.gguf")))
        assert checkpoint.config.predicts_next is (self.SHIFT == 1)
        logits = ReferenceModel(checkpoint).forward(TOKENS).logits
        np.testing.assert_allclose(logits, toy.rows(TOKENS), atol=1e-4)

    @pytest.mark.models
    def test_gguf_in_llama_cpp(self, toy: FullMaskToy, tmp_path: Path) -> None:
        """Both read the same file, keys and order of rows included."""
        path = self.write_gguf(toy, tmp_path / "tiny.gguf")
        expected = llama_cpp_logits(path, TOKENS)
        logits = ReferenceModel(open_checkpoint(str(path))).forward(TOKENS).logits
        np.testing.assert_allclose(logits, expected, atol=1e-3 * float(expected.std()))

    def write_header(self, writer: Any) -> None:
        """Writes the usual keys, and what models that fill masks in state besides."""
        super().write_header(writer)
        writer.add_causal_attention(False)
        writer.add_mask_token_id(MASK)
        if self.SHIFT == 0:  # llama.cpp takes true where nothing is stated
            writer.add_diffusion_shift_logits(False)

    def test_portable(self, toy: FullMaskToy, portable: Path) -> None:
        entry = export_entry(portable)
        runner = PortableRunner(portable / entry.graph, entry.config)
        logits, expected = runner.compute_logits(TOKENS, range(-1, N_TOKENS - 1)), toy.rows(TOKENS)
        np.testing.assert_allclose(logits, expected, atol=1e-3 * float(expected.std()))

    def test_fused_with_float_weights(self, toy: FullMaskToy, bundle: Path, tmp_path: Path) -> None:
        entry = export(ExportConfig(str(toy.folder), tmp_path / "b")).manifest.target
        runner = FusedRunner(tmp_path / "b" / entry.graph, entry.config, N_TOKENS)
        logits = runner.compute_logits(TOKENS, range(-1, N_TOKENS - 1))
        assert compare_logits(logits, toy.rows(TOKENS))["kl_nats"] < 1e-5

    def test_fused(self, toy: FullMaskToy, sequence: TokenSequence) -> None:
        sequence.truncate(0)
        block = TokenTree.block(TOKENS, range(N_TOKENS))
        logits = sequence.forward(block, range(N_TOKENS)).logits
        found = compare_logits(logits, toy.rows(TOKENS))
        assert found["kl_nats"] < 1e-3, found

    @pytest.mark.parametrize("kind", ["bundle", "portable"])
    def test_kept_rows(self, toy: FullMaskToy, kind: str, request: pytest.FixtureRequest) -> None:
        """Some rows of a pass are kept, in any order; a pass over others sees them."""
        kept, others = [9, 2, 17, 3, 22], [4, 0, 21, 11, 16, 8]
        with load(request.getfixturevalue(kind), EngineOptions(threads=2)) as engine:
            sequence = engine.new_sequence()
            sequence.forward(TokenTree.block(TOKENS, range(N_TOKENS)), [0])
            sequence.commit(kept)
            block = TokenTree.block([TOKENS[i] for i in others], others)
            logits = sequence.forward(block, range(len(others))).logits.copy()
        cache = transformers.DynamicCache()
        toy.cached_rows(TOKENS, range(N_TOKENS), cache)
        keep_rows(cache, kept)
        expected = toy.cached_rows([TOKENS[i] for i in others], others, cache)
        found = compare_logits(logits, expected)
        assert found["kl_nats"] < 1e-3, found
        alone = toy.rows([TOKENS[i] for i in others])
        assert compare_logits(alone, expected)["kl_nats"] > 1e-2  # the kept rows matter

    @pytest.mark.parametrize(
        ("steps", "block"), [(None, None), (4, None), (None, 4), (6, 6)], ids=str
    )
    def test_tokens(
        self, toy: FullMaskToy, portable: Path, steps: int | None, block: int | None
    ) -> None:
        """Tokens are those of the published rule, wherever no two choices are nearly equal."""
        prompt, n_new = TOKENS[:9], 12
        setting = UnmaskConfig(steps=steps, block=block)
        with load(portable, EngineOptions(threads=2)) as engine:
            result = engine.generate(
                prompt, max_new_tokens=n_new, unmask=setting, ignore_eos=True, temperature=0
            )
        expected, margin = unmasked(toy.rows, prompt, n_new, MASK, steps, block, self.SHIFT)
        assert margin > 2e-6  # what float32 leaves open
        assert list(result.token_ids) == expected
        assert result.stats.n_passes == (steps or n_new)
        assert result.switch == {"n_rows": (steps or n_new) * (len(prompt) + n_new)}
        assert result.lossless is (steps is None)
        assert result.finish_reason == "length"

    @pytest.mark.parametrize("refresh", [1, 3, 99])
    def test_delayed_cache(self, toy: FullMaskToy, portable: Path, refresh: int) -> None:
        """Tokens are those of dKV-Cache over transformers' own cache."""
        prompt, n_new = TOKENS[:9], 12
        setting = UnmaskConfig(refresh=refresh)
        with load(portable, EngineOptions(threads=2)) as engine:
            result = engine.generate(
                prompt, max_new_tokens=n_new, unmask=setting, ignore_eos=True, temperature=0
            )
        reading = DelayedRows(toy, MASK, refresh)
        expected, margin = unmasked(reading, prompt, n_new, MASK, shift=self.SHIFT)
        assert margin > 2e-6
        assert list(result.token_ids) == expected
        assert result.switch == {"n_rows": reading.n_rows}
        assert result.stats.n_passes == n_new
        if refresh == 1:
            plain, _ = unmasked(toy.rows, prompt, n_new, MASK, shift=self.SHIFT)
            assert expected == plain

    def test_texts_side_by_side(self, bundle: Path) -> None:
        """Passes of several texts run as one, and give what each gives alone."""
        prompts = [TOKENS[i : i + 7] for i in range(5)]
        with load(bundle, EngineOptions(threads=2)) as engine:
            config = GenerationConfig(max_new_tokens=8, ignore_eos=True)
            alone = [engine.generate(prompt, config).token_ids for prompt in prompts]
            together = engine.generate_many(prompts, config)
        assert [result.token_ids for result in together] == alone
        assert len(set(alone)) > 1

    def test_passes_are_blocks(self, sequence: TokenSequence) -> None:
        sequence.truncate(0)
        with pytest.raises(SessionError, match="fills masks in: its passes are over blocks"):
            sequence.forward(TokenTree.chain(TOKENS), [0])
        sequence.forward(TokenTree.block(TOKENS[:3], (5, 1, 2)), [0])
        for path in ([0, 0], [3], [-1]):
            with pytest.raises(SessionError, match="names a token twice, or one that the block"):
                sequence.commit(path)

    def test_other_targets_are_refused(self, toy: FullMaskToy, tmp_path: Path) -> None:
        for target in ("ort",):
            config = ExportConfig(str(toy.folder), tmp_path / "b", device_target=target)
            with pytest.raises(UnsupportedModelError, match="is bidirectional, which the compiler"):
                export(config)

    def test_layers_all_run(self, bundle: Path) -> None:
        can = export_entry(bundle).contract.can
        assert (can.trees, can.blocks, can.gates, can.entry) == (False, True, False, False)
        assert can.n_sequences > 1


class DelayedRows:
    """Rows of whole texts by dKV-Cache, over a cache of transformers.

    A token joins the cache after the first pass that sees itself, not a mask, in its place. A row
    that has the logits of a masked token does not yet. Every ``refresh`` passes the cache is empty.
    """

    def __init__(self, toy: FullMaskToy, mask: int, refresh: int) -> None:
        self._toy, self._mask, self._refresh = toy, mask, refresh
        self._kept: list[int] = []
        self._cache: Any = None
        self._n_passes = self.n_rows = 0

    def __call__(self, text: Sequence[int]) -> Logits:
        if self._n_passes % self._refresh == 0:
            self._cache, self._kept = transformers.DynamicCache(), []
        self._n_passes += 1
        fresh = [place for place in range(len(text)) if place not in self._kept]
        self.n_rows += len(fresh)
        found = self._toy.cached_rows([text[place] for place in fresh], fresh, self._cache)
        rows = np.full((len(text), found.shape[1]), np.nan, np.float32)
        rows[fresh] = found
        masked = [place for place, token in enumerate(text) if token == self._mask]
        needed = {*masked, *(place - self._toy.shift for place in masked)}
        done = [place for place in fresh if place not in needed]
        n_before = len(self._kept)
        keep_rows(self._cache, [*range(n_before), *(n_before + fresh.index(p) for p in done)])
        self._kept += done
        return rows


def keep_rows(cache: Any, rows: Sequence[int]) -> None:
    """Leaves ``rows`` in a cache of transformers, in this order."""
    for layer in cache.layers:
        layer.keys, layer.values = layer.keys[:, :, list(rows)], layer.values[:, :, list(rows)]
