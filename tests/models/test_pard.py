"""Draft models of PARD, which draft in one pass, against transformers on random weights.

The oracle is what AMD's ``pard_infer.py`` does: K - 1 mask tokens behind the text, a token from
each of the last K rows.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig, load
from edgedec.export.checkpoints.checkpoint import open_checkpoint
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.kernels.library import has_library
from edgedec.models.errors import CheckpointError
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.draft.parallel import MaskedPasses, ParallelDrafter
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.sequences.passes import run_passes
from tests.models import test_llama_mlp_bias as llama
from tests.models import test_qwen2 as qwen2
from tests.models import test_qwen3 as qwen3
from tests.parity.family_parity import SIZES, TOKENS, FamilyParity, Logits, Toy

pytestmark = [
    pytest.mark.parity,
    pytest.mark.skipif(not has_library(), reason="the kernel library is not built"),
]
CONTEXT, MASK, K = 400, 93, 5
DRAFTERS: list[tuple[type[FamilyParity], str]] = [
    (qwen2.TestParity, "cpu"), (qwen3.TestParity, "portable"), (llama.TestParity, "cpu"),
]  # fmt: skip
"""Families, and what their graphs are made for: the portable ones keep keys in float32."""


class Plain(llama.TestParity):
    """Llama with room for texts."""

    SIZES = {**SIZES, "max_position_embeddings": CONTEXT}


def draw_drafter(cls: type[FamilyParity], folder: Path) -> Toy:
    """Returns a draft model, sure of what it says, with the keys that PARD's training adds."""
    sizes = {**cls.SIZES, "max_position_embeddings": CONTEXT, "num_hidden_layers": 2}

    class Drafter(cls):  # type: ignore[valid-type, misc]
        SIZES, SEED = sizes, 8

        @classmethod
        def spread(cls, name: str) -> tuple[float, float]:
            return (12.0, 0.3) if name == "model.norm.weight" else super().spread(name)

    folder.mkdir()
    toy: Toy = Drafter.draw(folder)
    with_keys(folder, pard_token=MASK, spd_type="pard")
    return toy


def with_keys(folder: Path, **keys: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def keep_halves(model: Any, patch: pytest.MonkeyPatch) -> None:
    """Has attention see keys and values as a KV cache of halves holds them."""
    module = sys.modules[type(model).__module__]
    attend = module.eager_attention_forward

    def rounded(layer: Any, q: Any, k: Any, v: Any, *rest: Any, **options: Any) -> Any:
        return attend(layer, q, k.half().float(), v.half().float(), *rest, **options)

    patch.setattr(module, "eager_attention_forward", rounded)


@dataclasses.dataclass(frozen=True)
class Case:
    """A draft model and the bundle of a target model with it."""

    drafter: Toy
    engine: Engine

    def levels(self, text: list[int]) -> Logits:
        """Returns what PARD's code takes from one pass [K, V]."""
        return self.drafter.logits([*text, *[MASK] * (K - 1)])[-K:]


@pytest.fixture(scope="module", params=DRAFTERS, ids=lambda pair: pair[0].EXPECTED["family"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    folder, (cls, device_target) = tmp_path_factory.mktemp("pard"), request.param
    drafter = draw_drafter(cls, folder / "drafter")
    (folder / "target").mkdir()
    target = Plain.draw(folder / "target")
    draft = DraftModelConfig(str(drafter.folder), "keep", device_target=device_target)
    export(ExportConfig(str(target.folder), folder / "b", draft=draft))
    with (
        load(folder / "b", EngineOptions(threads=1)) as engine,
        pytest.MonkeyPatch.context() as patch,
    ):
        if device_target == "cpu":
            keep_halves(drafter.model, patch)
        yield Case(drafter, engine)


def test_one_pass_says_what_transformers_does(case: Case) -> None:
    """After a text, and again after another that begins alike, whose rows are kept."""
    assert case.engine.draft is not None
    role = case.engine.draft.open()
    passes = MaskedPasses(role, role.take(TOKENS), MASK)
    passes.n_levels = K
    for text in (TOKENS, [*TOKENS, 5, 6], [*TOKENS[:-2], 9]):
        expected = case.levels(text)
        passes.align(text)
        assert passes.n_missing(text) <= len(text) + K - 1
        found = [run_passes(passes.feed(text, with_logits=True)).logits[0]]
        for row in range(-1, K - 2):
            found.append(run_passes(passes.grow([0], [row], with_logits=True)).logits[0])
        np.testing.assert_allclose(found, expected, atol=1e-4 * float(expected.std()))
        assert list(passes.sequence.tokens) == text
    role.close()


def test_the_drafted_tokens_are_those_of_transformers(case: Case) -> None:
    assert case.engine.draft is not None
    role = case.engine.draft.open()
    drafting = ParallelDrafter(role, MASK).begin(DraftPrompt(TOKENS))
    context = DraftContext(TOKENS, len(TOKENS), SamplingConfig(), Noise(0))
    tree = run_passes(drafting.propose(context, Budget(n_nodes=40, depth=K)))
    chain, last = [], -1
    while children := tree.children(last):
        last = children[0]
        chain.append(tree.nodes[last].token)
    assert chain == case.levels(TOKENS).argmax(axis=1).tolist()
    assert drafting.passes.cost.n_fed == len(TOKENS) + K - 1
    role.close()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("method", ["draft", "auto"])
def test_text_stays_that_of_plain_decoding(case: Case, method: str, temperature: float) -> None:
    for seed, prompt in enumerate(["A", "ABCABCDEFABCABCDEF", "#!" * 188]):
        request = GenerationConfig(
            max_new_tokens=24, ignore_eos=True, seed=seed,
            sampling=SamplingConfig(temperature=temperature),
        )  # fmt: skip
        plain = case.engine.generate(prompt, dataclasses.replace(request, method="plain"))
        found = case.engine.generate(prompt, dataclasses.replace(request, method=method))
        assert found.token_ids == plain.token_ids
        assert not found.stats.failed_drafters
        assert method == "auto" or found.stats.n_proposed


def test_a_model_that_drafts_for_itself_is_right_about_the_next_token(
    case: Case, tmp_path: Path
) -> None:
    export(
        ExportConfig(
            str(case.drafter.folder),
            tmp_path / "b",
            draft=DraftModelConfig(str(case.drafter.folder), quantization="keep"),
        )
    )
    with load(tmp_path / "b", EngineOptions(threads=1)) as engine:
        request = GenerationConfig(max_new_tokens=24, ignore_eos=True, method="draft")
        stats = engine.generate("ABCABC", request).stats
        assert stats.drafted["draft"][0].n_accepted >= stats.n_passes - 2


@pytest.mark.parametrize("token", [97, -2, "93", 1.5])
def test_mask_tokens_that_the_model_lacks_are_refused(
    case: Case, tmp_path: Path, token: object
) -> None:
    for file in case.drafter.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with_keys(tmp_path, pard_token=token)
    with pytest.raises(CheckpointError, match=r"pard_token is .*, expected"):
        open_checkpoint(str(tmp_path))


def test_a_draft_model_without_a_mask_token_drafts_as_others(case: Case, tmp_path: Path) -> None:
    """As PARD's training writes it where none was trained."""
    for file in case.drafter.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    with_keys(tmp_path, pard_token=-1)
    assert not open_checkpoint(str(tmp_path)).config.drafts_in_one_pass


def test_what_pard_2_adds_is_left_out_and_named(case: Case, tmp_path: Path) -> None:
    """Its files for drafting from the text alone are those of PARD."""
    folder = tmp_path / "drafter"
    folder.mkdir()
    for file in case.drafter.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    with_keys(folder, spd_type="pard2", pard2_target_layers=[2, 3], pard2_target_dim=80)
    draft = DraftModelConfig(str(folder), "keep")
    done = export(ExportConfig(str(folder), tmp_path / "b", draft=draft))
    assert done.manifest.models["draft"].config.drafts_in_one_pass
    assert "target_proj in warp_model.bin" in done.left_out
    assert [line for line in done.warnings if "target_proj" in line]
