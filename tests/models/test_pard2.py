"""Drafters of PARD 2, which read the target's hidden states, against transformers.

The oracle is what AMD's ``pard2_infer.py`` does: `target_proj` of the states of the token before is
added to the embeddings of the text, and that of the last known ones to those of the masks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.config import ExportConfig
from edgedec.export.heads import attached
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library
from edgedec.models.draft_heads import PARD2
from edgedec.models.errors import CheckpointError, UnsupportedModelError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.drafting.drafter import DraftPrompt
from edgedec.runtime.drafting.drafter_parts import Need
from edgedec.runtime.drafting.drafters.pard.pard_drafter import PardDrafter, PardPasses
from edgedec.runtime.sequences.passes import run_passes
from tests.models import test_llama_mlp_bias as llama
from tests.models import test_qwen2 as qwen2
from tests.models import test_qwen3 as qwen3
from tests.models.test_pard import MASK, Plain, draw_drafter, keep_halves, with_keys
from tests.parity.family_parity import SIZES, TOKENS, Logits, Toy, torch

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]
LAYERS, SCALE, K = (1, 3), 0.25, 5
WIDTH = SIZES["hidden_size"] * len(LAYERS)
KEYS = {
    "spd_type": "pard2", "pard2_target_layers": list(LAYERS), "pard2_target_dim": WIDTH,
    "pard2_scale": SCALE, "pard2_proj_bias": False,
}  # fmt: skip


class Llama(llama.TestParity):
    """Without biases."""

    SIZES, EXPECTED = SIZES, {"family": "llama"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A drafter, the matrix for its states, and a bundle of a target model with it."""

    target: Toy
    drafter: Toy
    states: Any
    engine: Engine

    def hidden(self, text: list[int]) -> dict[int, Logits]:
        """Returns the target's states of every token."""
        with torch.inference_mode():
            found = self.target.model(torch.tensor([text]), output_hidden_states=True)
        return {layer: found.hidden_states[layer][0].numpy() for layer in LAYERS}

    def levels(self, text: list[int], n_levels: int) -> Logits:
        """Returns the logits of the last token of ``text``, and of the masks behind it."""
        hidden = self.hidden(text)
        states = np.concatenate([hidden[layer] for layer in LAYERS], axis=1)
        before = np.concatenate([np.zeros((1, WIDTH), np.float32), states[:-1]])
        before = np.concatenate([before, *[before[-1:]] * (n_levels - 1)])
        ids = torch.tensor([[*text, *[MASK] * (n_levels - 1)]])
        model = self.drafter.model
        with torch.inference_mode():
            x = model.get_input_embeddings()(ids) + torch.tensor(before) @ self.states.T * SCALE
            logits: Logits = model(inputs_embeds=x).logits[0, -n_levels:].numpy()
        return logits


def write_states(folder: Path, states: Any, **keys: Any) -> Path:
    save_file({"target_proj.weight": states}, folder / "warp_model.safetensors")
    with_keys(folder, **(KEYS | keys))
    return folder


@pytest.fixture(
    scope="module", params=[qwen3.TestParity, Llama, qwen2.TestParity],
    ids=lambda cls: cls.EXPECTED["family"],
)  # fmt: skip
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("pard2")
    drafter = draw_drafter(request.param, folder / "drafter")
    (folder / "target").mkdir()
    target = Plain.draw(folder / "target")
    torch.manual_seed(2)
    states = torch.randn(drafter.model.config.hidden_size, WIDTH)
    head = write_states(drafter.folder, states)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attached, "_SCHEME", "keep")
        export(ExportConfig(str(target.folder), folder / "b", head=head))
        keep_halves(drafter.model, patch)
        with load(folder / "b", EngineOptions(threads=1)) as engine:
            yield Case(target, drafter, states, engine)
    entry = read_manifest(folder / "b").head
    assert entry is not None
    assert (entry.kind, entry.hidden_layers) == (PARD2, LAYERS)


def test_one_pass_says_what_transformers_does(case: Case) -> None:
    """After a prompt, then after texts that go on from it, whose rows are kept."""
    role = case.engine.loaded.parts.drafters.heads[Need.PARD]()
    role.forget()
    text = list(TOKENS)
    passes = PardDrafter(role).open(DraftPrompt(text[:-1], case.hidden(text[:-1])), text[:-1])
    assert isinstance(passes, PardPasses)
    for n_levels, more in ((K, [5, 6]), (1, [9]), (3, [7, 7, 1])):
        passes.n_levels = n_levels
        assert passes.can_read(text)
        passes.align(text)
        found = [run_passes(passes.feed(text, with_logits=True)).logits[0]]
        for row in range(-1, n_levels - 2):
            found.append(run_passes(passes.grow([0], [row], with_logits=True)).logits[0])
        expected = case.levels(text, n_levels)
        np.testing.assert_allclose(found, expected, atol=1e-4 * float(expected.std()))
        assert list(passes.sequence.tokens) == text
        n_known, text = len(text) - 1, [*text, *more]
        states = case.hidden(text[:-1])
        passes.learn(n_known, {layer: rows[n_known:] for layer, rows in states.items()})
    passes.end(text)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["pard", "auto", "lookup+pard"])
def test_text_stays_that_of_plain_decoding(case: Case, method: str, temperature: float) -> None:
    for seed, prompt in enumerate(["A", "ABCABCDEFABCABCDEF", "ABCABCDEFABCABCDEFGH", "#!" * 188]):
        request = GenerationConfig(
            max_new_tokens=24, ignore_eos=True, seed=seed,
            sampling=SamplingConfig(temperature=temperature),
        )  # fmt: skip
        plain = case.engine.generate(prompt, dataclasses.replace(request, method="plain"))
        found = case.engine.generate(prompt, dataclasses.replace(request, method=method))
        assert found.token_ids == plain.token_ids
        assert not found.stats.failed_drafters
        assert method == "auto" or found.stats.n_proposed


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"pard2_target_dim": WIDTH + 1}, f"another model: its pard2_target_dim is {WIDTH + 1}"),
        ({"vocab_size": 96}, "of another model: its vocab_size is 96, the model's 97"),
        ({"pard2_target_layers": [3, 1]}, "rising layers"),
        ({"pard2_target_layers": [1, 4]}, "pard2_target_layers"),
        ({"pard2_proj_bias": True}, "pard2_proj_bias"),
        ({"model_type": "gemma2"}, "model_type is 'gemma2', expected one of llama"),
    ],
)
def test_drafters_of_other_models_are_refused(
    case: Case, tmp_path: Path, keys: dict[str, Any], expected: str
) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    for file in case.drafter.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with_keys(folder, **keys)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=expected):
        export(ExportConfig(str(case.target.folder), tmp_path / "b", head=folder))


def test_states_in_a_pickle_are_to_be_converted(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "head"
    folder.mkdir()
    for file in case.drafter.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "warp_model.safetensors").rename(folder / "warp_model.bin")
    with pytest.raises(CheckpointError, match=r"no warp_model.safetensors: convert warp_model.bin"):
        export(ExportConfig(str(case.target.folder), tmp_path / "b", head=folder))
