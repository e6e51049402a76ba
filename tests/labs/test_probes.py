"""Probes: the regression, the rows they learn from, what a bundle holds of them, and their uses."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.apps.cli import main
from edgedec.labs.drafters.probed.probed_drafter import ProbedDrafter
from edgedec.labs.methods.judging import make
from edgedec.labs.probes.logistic import fit_logistic
from edgedec.labs.probes.pair_rows import Labelled, Reader, read_text
from edgedec.labs.probes.probe_job import ProbeJob, fit_probe, train_bundle_probes
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.manifest import MANIFEST_NAME, PROBES_KEY
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.draft_role import DraftRole
from edgedec.runtime.drafting.drafter import Budget
from edgedec.runtime.drafting.drafters.draft.draft_model import DraftModelDrafter
from edgedec.runtime.drafting.probe import DRAFT, JUDGE, N_EXTRA, N_STATS, Probe
from edgedec.runtime.opening.options import EngineOptions
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.rows import Rows
from edgedec.runtime.text.token_map import TokenMap

from ..runtime.conftest import OnePool, ToyModel, ToySession, prefix_of
from ..runtime.decoding.switching.switch_toys import GREEDY, SETTINGS, rule, switched
from ..runtime.draft_toys import PROMPT, VOCAB, generate

WIDTH, CONTEXT = 6, 512
RNG = np.random.default_rng(5)


class Showing(ToyModel):
    """A model with hidden states, which tell the tokens before."""

    def __init__(self, noise: float) -> None:
        super().__init__(VOCAB, rule(VOCAB, noise))
        self.capabilities = dataclasses.replace(self.capabilities, hidden=(1,))

    def rows_of(self, wanted: Pass) -> Rows:
        rows = super().rows_of(wanted)
        new = range(wanted.n_known, len(wanted.tree))
        hidden = {i: np.stack([hidden_of(prefix_of(wanted, t)) for t in new]) for i in
                  wanted.hidden_layers}  # fmt: skip
        return Rows(rows.logits, hidden)


def hidden_of(prefix: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Returns a vector of length sqrt(WIDTH), which norms leave as it is."""
    found = np.random.default_rng([9, *prefix[-2:]]).standard_normal(WIDTH)
    return (found / np.sqrt(np.square(found).mean())).astype(np.float32)


def showing(noise: float) -> ToySession:
    return ToySession(VOCAB, CONTEXT, model=Showing(noise))


def saying(kind: str, bias: float) -> Probe:
    """Returns a probe that says the same of every row."""
    weights = np.zeros(WIDTH + N_STATS + N_EXTRA[kind], np.float32)
    return Probe(kind, "a", "b", weights, bias, 1, 1e-6, {})


def test_the_regression_is_at_the_minimum_of_its_objective() -> None:
    """By torch's gradients in float64, and as near to its optimum as float32 products allow."""
    torch = pytest.importorskip("torch")
    x = (RNG.standard_normal((3000, 9)) * [1, 2, 3, 1, 5, 1, 1, 9, 1] + 4).astype(np.float32)
    y = RNG.random(3000) < 1 / (1 + np.exp(-(x[:, 0] - x[:, 1] + 4)))
    penalty = np.array([25.0] * 5 + [3.0] * 4)
    found = fit_logistic(x, y, penalty)
    scale, mean = x.std(0, dtype=np.float64) + 1e-6, x.mean(0, dtype=np.float64)
    rows, reported = torch.tensor((x - mean) / scale), torch.tensor(y, dtype=torch.float64)
    own = torch.tensor(found.weights * scale, requires_grad=True)
    bias = torch.tensor(found.bias + found.weights @ mean, requires_grad=True)

    def objective(w: Any, b: Any) -> Any:
        loss = torch.nn.functional.binary_cross_entropy_with_logits
        return (
            loss(rows @ w + b, reported, reduction="sum")
            + (torch.tensor(penalty) * w * w).sum() / 2
        )

    objective(own, bias).backward()
    assert float(own.grad.abs().max()) < 0.05  # of sums over 3000 rows
    assert abs(float(bias.grad)) < 0.05
    best, at = (torch.zeros_like(t, requires_grad=True) for t in (own, bias))
    optimiser = torch.optim.LBFGS([best, at], max_iter=200, tolerance_grad=1e-10)

    def closure() -> Any:
        optimiser.zero_grad()
        loss = objective(best, at)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert np.abs(best.detach().numpy() - own.detach().numpy()).max() < 1e-4


def test_rows_are_labelled_as_each_place_by_itself_says() -> None:
    tokens = RNG.integers(0, VOCAB, 300).tolist()
    truth = rule(VOCAB, 0.0)
    for i in range(1, 300):  # most of the text is what one of the models would say
        tokens[i] = int((truth if i % 3 else rule(VOCAB, 2.0))(tokens[:i]).argmax())
    draft, target = (Reader(showing(noise), 1, 1e-6) for noise in (2.0, 0.0))
    found = Labelled()
    read_text(draft, target, tokens, found)
    expected: dict[str, list[tuple[bool, tuple[int, ...]]]] = {DRAFT: [], JUDGE: []}
    for i in range(len(tokens)):
        prefix = tokens[: i + 1]
        drafted, chosen = (int(rule(VOCAB, noise)(prefix).argmax()) for noise in (2.0, 0.0))
        expected[DRAFT].append((drafted == chosen, tuple(prefix)))
        is_last_of_chunk = i % 128 == 127
        follows = tokens[i + 1] if i + 1 < len(tokens) else -1
        if drafted != chosen and drafted == follows and not is_last_of_chunk:
            expected[JUDGE].append((True, (*prefix, drafted)))
        if drafted != chosen and chosen == follows:
            expected[JUDGE].append((False, (*prefix, drafted)))
    for kind, rows in expected.items():
        inputs, is_right, texts = found.of(kind)
        assert set(texts.tolist()) == {0}
        assert is_right.sum() == sum(right for right, _ in rows) > 10
        assert (~is_right).sum() > 10
        shown = sorted(
            (bool(r), *x[:WIDTH].tolist()) for r, x in zip(is_right, inputs, strict=True)
        )
        wanted = sorted(
            (r, *hidden_of(p).astype(np.float16).astype(np.float32).tolist()) for r, p in rows
        )
        assert np.abs(np.array(shown) - np.array(wanted)).max() < 2e-3
    assert target.sequence.n_tokens == len(tokens)


def test_what_can_be_kept_apart_is_and_noise_is_not() -> None:
    x = RNG.standard_normal((4000, WIDTH + N_STATS)).astype(np.float32)
    texts = np.repeat(np.arange(40), 100)
    reported = fit_probe(x, x[:, 0] > 0, texts, DRAFT)
    assert reported.held_out < 0.3 < 0.6 < reported.plain
    noise = fit_probe(x, RNG.random(4000) < 0.5, texts, DRAFT)
    assert noise.held_out == pytest.approx(np.log(2), abs=0.02)
    assert noise.held_out <= noise.plain + 1e-3  # hidden states that say nothing do no harm
    with pytest.raises(ConfigError, match=r"expected at least 30 of both kinds"):
        fit_probe(x, np.ones(4000, np.bool_), texts, JUDGE)


@pytest.mark.parametrize("sampling", [SamplingConfig(), SamplingConfig(temperature=0.9)])
@pytest.mark.parametrize("bias", [-20.0, 0.0, 20.0])
def test_with_a_probe_the_text_is_plain_decodings(sampling: SamplingConfig, bias: float) -> None:
    config = GenerationConfig(max_new_tokens=40, seed=5, sampling=sampling)
    plain = generate(showing(0.0), PROMPT, config)
    result = generate(showing(0.0), PROMPT, config, probed(saying(DRAFT, bias)))
    assert result.token_ids == plain.token_ids
    assert result.lossless


def test_a_probe_decides_how_far_is_drafted() -> None:
    def n_steps(make_drafter: Callable[[DraftRole], DraftModelDrafter]) -> float:
        draft = showing(2.0)
        drafter = make_drafter(role(draft))
        strategy = Speculative(FixedPlanner([], BUDGET, model=drafter))
        n_rounds = generate(showing(0.0), PROMPT, GREEDY, strategy).stats.n_passes - 1
        return draft.toy.n_passes / n_rounds

    usual = n_steps(DraftModelDrafter)
    assert n_steps(lambda one: ProbedDrafter(one, saying(DRAFT, 20.0))) > usual + 1
    assert n_steps(lambda one: ProbedDrafter(one, saying(DRAFT, -20.0))) < usual


BUDGET = Budget(n_nodes=7, depth=6, min_value=0.02, min_step_value=0.3)


def role(draft: ToySession) -> DraftRole:
    return DraftRole(OnePool(draft), TokenMap.same(VOCAB, VOCAB), VOCAB)


def probed(probe: Probe) -> Speculative:
    return Speculative(FixedPlanner([], BUDGET, model=ProbedDrafter(role(showing(2.0)), probe)))


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_judge_that_forgives_nothing_verifies(setting: str) -> None:
    for probe, delta in ((saying(JUDGE, -20.0), 0.5), (saying(JUDGE, 20.0), 1.0)):
        result, *_ = judged(f"{setting},mode=judge,delta={delta}", probe, delta)
        assert result.token_ids == generate(showing(0.0), PROMPT, GREEDY).token_ids
        assert not result.lossless


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_judge_that_forgives_all_keeps_every_draft(setting: str) -> None:
    result, *_ = judged(f"{setting},mode=judge", saying(JUDGE, 20.0), 0.5)
    assert result.switch["n_dropped"] <= len(result.token_ids)  # bild's own fallbacks
    assert result.token_ids != generate(showing(0.0), PROMPT, GREEDY).token_ids
    assert result.stats.n_accepted == result.stats.n_evaluated


def test_a_judge_reads_the_state_at_the_token_and_how_likely_it_was() -> None:
    """A probe of one hidden number and the log-probability, against the text token by token."""
    weights = np.zeros(WIDTH + N_STATS + 1, np.float32)
    weights[0], weights[-1] = 4.0, 0.3
    probe = Probe(JUDGE, "a", "b", weights, 0.5, 1, 1e-6, {})
    result, *_ = judged("ead:threshold=inf,mode=judge,max_run=5", probe, 0.5)
    text, n_forgiven = [*PROMPT], 0
    for token, origin in zip(result.token_ids, result.origins, strict=True):
        row = rule(VOCAB, 0.0)(text).astype(np.float64)
        log_prob = row[token] - np.logaddexp.reduce(row)
        odds = 4.0 * hidden_of([*text, token])[0] + 0.3 * log_prob + 0.5
        if origin == "draft":
            assert token == row.argmax() or odds > -1e-3
            n_forgiven += token != row.argmax()
        else:
            assert token == row.argmax()
        text.append(token)
    assert n_forgiven > 3


def judged(setting: str, probe: Probe, delta: float) -> Any:
    return switched(
        setting, GREEDY, showing(0.0), showing(2.0), forgives=make(probe, delta), read_layers=(1,)
    )


@pytest.fixture(scope="module")
def pair(
    smollm2_bundle: Path, smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """A bundle to write into, and one of the same model with some weights changed, which drafts."""
    import gguf

    from edgedec.export.config import ExportConfig
    from edgedec.export.pipeline import export

    folder = tmp_path_factory.mktemp("pair")
    changed = folder / "changed.gguf"
    shutil.copy(smollm2_gguf, changed)
    rng = np.random.default_rng(0)
    for tensor in gguf.GGUFReader(changed, "r+").tensors:
        if tensor.name in {f"blk.{i}.ffn_down.weight" for i in range(12, 20)}:
            codes = tensor.data.reshape(-1, 20)[:, 4:]  # of blocks of Q4_1
            codes ^= rng.choice(np.array([0, 0x22, 0x44], np.uint8), codes.shape)
    export(ExportConfig(str(changed), folder / "draft.edgedec"))
    shutil.copytree(smollm2_bundle, folder / "target.edgedec")
    return folder / "target.edgedec", folder / "draft.edgedec"


@pytest.fixture(scope="module")
def report(pair: tuple[Path, Path]) -> Any:
    target, draft = pair
    docs = Path(__file__).parents[2] / "docs"
    job = ProbeJob(target, (docs,), draft, max_tokens=6000)
    return train_bundle_probes(job, lambda *_: None, lambda: False)


@pytest.mark.e2e
def test_probes_are_fitted_and_used(pair: tuple[Path, Path], report: Any) -> None:
    target, draft = pair
    found = report.to_dict()["probes"]
    assert set(found) == {DRAFT, JUDGE}
    assert 0.3 < found[DRAFT]["rate"] < 0.95
    base = found[DRAFT]["rate"]
    of_base = -(base * np.log(base) + (1 - base) * np.log(1 - base))
    assert found[DRAFT]["held_out"] < of_base  # better than to say the rate of all
    prompt = [{"role": "user", "content": "Name three rivers of Europe."}]
    with edgedec.load(target, EngineOptions(draft=draft)) as engine:
        plain = engine.generate(prompt, max_new_tokens=40)
        probed = engine.generate(prompt, max_new_tokens=40, method="probed")
        assert probed.token_ids == plain.token_ids
        assert probed.stats.n_accepted > 5
        assert probed.lossless
        lenient = engine.generate(prompt, max_new_tokens=40, switch=asked(0.0))
        strict = engine.generate(prompt, max_new_tokens=40, switch=asked(1.0))
    assert strict.token_ids == plain.token_ids
    assert not strict.lossless
    assert lenient.switch["n_dropped"] <= strict.switch["n_dropped"]


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda probes: probes[DRAFT].update(weights="@"), "no base64"),
        (lambda probes: probes[DRAFT].update(weights="AAAA"), "no base64|numbers, expected"),
        (lambda probes: probes[DRAFT].update(weights="AACAfw=="), "numbers, expected"),
        (lambda probes: probes[JUDGE].update(bias="x"), "bias"),
        (lambda probes: probes.update(colour={}), "colour"),
    ],
)
def test_what_is_no_probe_is_refused(
    change: Callable[[Any], Any], message: str, pair: tuple[Path, Path], report: Any, tmp_path: Path
) -> None:
    target, draft = pair
    broken = tmp_path / "broken.edgedec"
    shutil.copytree(target, broken)
    path = broken / MANIFEST_NAME
    manifest = json.loads(path.read_text())
    change(manifest["defaults"][PROBES_KEY])
    path.write_text(json.dumps(manifest))
    with pytest.raises(BundleError, match=message):
        edgedec.load(broken, EngineOptions(draft=draft))


@pytest.mark.e2e
def test_probes_of_other_models_are_not_used(pair: tuple[Path, Path], report: Any) -> None:
    target, _ = pair
    with edgedec.load(target, EngineOptions(draft=target)) as engine:
        with pytest.raises(ConfigError, match=r"method probed needs a probe of this draft model"):
            engine.generate("x", method="probed", max_new_tokens=2)
        with pytest.raises(ConfigError, match=r"judge needs a probe of these two models"):
            engine.generate("x", switch=asked(0.5), max_new_tokens=2)


@pytest.mark.e2e
def test_what_no_probe_can_be_fitted_for_is_refused(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = pair
    (tmp_path / "few.txt").write_text("A few words, and then the end of the text.\n")
    command = ["train", "probe", str(target), "--corpus", str(tmp_path)]
    for more, message in (
        ([], "this bundle has none: name one with --draft"),
        (["--draft", str(draft)], "expected at least 30 of both kinds"),
        (["--draft", str(draft), "--corpus", "/nowhere"], "got /nowhere"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main([*command, *more])
        assert stopped.value.code == 1
        assert message in " ".join(capsys.readouterr().err.split())


def asked(delta: float) -> SwitchConfig:
    return SwitchConfig.parse(f"bild:mode=judge,delta={delta}")
