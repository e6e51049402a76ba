"""Early exits: logits against transformers, texts and KV caches against plain decoding."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.export.config import ExitConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.head_ids import read_head_ids
from edgedec.models.hidden_states import normed
from edgedec.models.manifest import read_manifest
from edgedec.runtime.backends import open_model, release_model
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.busy_clock import BusyClock
from edgedec.runtime.decoding.cost_book import TARGET, CostBook
from edgedec.runtime.decoding.cost_table import CostTable
from edgedec.runtime.methods import head_source
from edgedec.runtime.sequences import passes as passes_module
from edgedec.runtime.sequences.passes import Pass
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree

from ..export.tiny_llama import TOKENIZER, sizes

torch = pytest.importorskip("torch", reason="needs the extra train")
transformers = pytest.importorskip("transformers", reason="needs the dev extra")

from .head_parts import check_rows  # noqa: E402

N_LAYERS, EXITS, N_LOGITS = 6, (1, 2), 80
TOKENS = [3, 80, 7, 7, 41, 0, 12, 66, 5, 91, 33, 8, 2, 60, 77, 19, 4, 4, 58, 30, 11, 95, 23]
PROMPTS = ["hello", "4242 4242 hello he", "w,w"]


@pytest.fixture(scope="module")
def model() -> Any:
    """A model of transformers whose later layers add little, as those of LayerSkip come to do."""
    torch.manual_seed(3)
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes(N_LAYERS))).eval()
    for name, parameter in made.named_parameters():
        is_norm = "norm" in name
        torch.nn.init.normal_(parameter, mean=float(is_norm), std=0.3 if is_norm else 0.2)
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            layer = int(name.split(".")[2])
            parameter.data *= (1.0, 0.05)[layer >= EXITS[-1]]
    return made


@pytest.fixture(scope="module")
def bundle(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exits")
    model.save_pretrained(folder / "hf")
    (folder / "hf" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    exits = ExitConfig(EXITS, N_LOGITS)
    source = str(folder / "hf")
    export(ExportConfig(source, folder / "tiny.edgedec", exit=exits))
    return folder / "tiny.edgedec"


def exit_logits(bundle: Path, layer: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the logits of the bundle's exit behind ``layer``, and what tokens they are about."""
    manifest = read_manifest(bundle)
    target, entry = manifest.target, manifest.head
    assert entry is not None
    assert entry.head.head_ids is not None
    ids = read_head_ids(bundle / entry.head.head_ids, target.config.vocab_size)
    whole, head = open_model(bundle, target, 1), open_model(bundle, entry.head, 1)
    chain = TokenTree.chain(TOKENS)
    early = TokenSequence(whole, 64)
    hidden = early.run(Pass(early, chain, (), (layer,), layers=range(layer))).hidden[layer]
    sequence, rows = TokenSequence(head, 64), range(len(TOKENS))
    features = normed(hidden, target.config.rms_norm_eps)
    logits = sequence.run(Pass(sequence, chain, rows, features=features)).logits.copy()
    release_model(whole)
    release_model(head)
    return logits, ids


@pytest.mark.parametrize("layer", EXITS)
def test_exits_give_the_logits_of_transformers(bundle: Path, model: Any, layer: int) -> None:
    """The weights of the head have 8 bits, which costs a hundredth of the spread."""
    found, ids = exit_logits(bundle, layer)
    with torch.inference_mode():
        hidden = model(torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
        expected = {i: model.lm_head(model.model.norm(hidden[i]))[0].numpy()[:, ids] for i in EXITS}
    errors = {i: np.abs(found - logits).mean() / logits.std() for i, logits in expected.items()}
    assert errors[layer] < 0.015
    assert all(error > 5 * errors[layer] for i, error in errors.items() if i != layer)


def request(method: str, temperature: float = 0.0, **fields: Any) -> GenerationConfig:
    sampling = SamplingConfig(temperature=temperature)
    known = {"max_new_tokens": 30, "ignore_eos": True, "seed": 5, **fields}
    return GenerationConfig(**known, sampling=sampling, method=method)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("method", ["exit", "exit+lookup", "auto"])
def test_the_text_is_that_of_plain_decoding(bundle: Path, method: str, temperature: float) -> None:
    n_accepted = 0
    with edgedec.load(bundle) as engine:
        for prompt in PROMPTS:
            plain = engine.generate(prompt, request("plain", temperature))
            found = engine.generate(prompt, request(method, temperature))
            assert found.token_ids == plain.token_ids
            assert not found.stats.failed_drafters
            n_accepted += found.stats.n_accepted
    assert n_accepted > 20 or method == "auto"


@pytest.mark.parametrize("size", [None, 0])
def test_exits_may_name_all_tokens(bundle: Path, tmp_path: Path, size: int | None) -> None:
    """By request, or because the vocabulary is smaller than what they know by default."""
    path = tmp_path / "all.edgedec"
    export(ExportConfig(str(bundle.parent / "hf"), path, exit=ExitConfig(EXITS, size)))
    n_tokens = read_manifest(path).target.config.vocab_size
    _, ids = exit_logits(path, EXITS[0])
    assert ids.tolist() == list(range(n_tokens))
    with edgedec.load(path) as engine:
        plain, found = (engine.generate(PROMPTS[0], request(name)) for name in ("plain", "exit"))
    assert found.token_ids == plain.token_ids
    assert found.stats.n_accepted > 3
    assert not found.stats.failed_drafters


@pytest.mark.parametrize("verifier", ["deterministic", "typical"])
def test_drafts_may_be_drawn(bundle: Path, verifier: str) -> None:
    with edgedec.load(bundle) as engine:
        found = engine.generate(PROMPTS[0], request("exit", 0.9, verifier=verifier))
        assert not found.stats.failed_drafters
        assert found.stats.n_accepted > 3


@pytest.mark.parametrize("method", ["exit", "exit+lookup"])
def test_the_kv_cache_is_that_of_a_fresh_prefill(bundle: Path, method: str) -> None:
    """After any number of rounds, for an output may end with each."""
    with edgedec.load(bundle) as engine:
        for n in range(2, 14):
            for temperature in (0.0, 0.9):
                found = engine.generate(PROMPTS[1], request(method, temperature, max_new_tokens=n))
                text = [*engine.encode(PROMPTS[1]), *found.token_ids]
                check_rows(engine, text[:-1])


def test_later_layers_go_on_from_what_drafting_left(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Pass] = []
    begin = TokenSequence.begin

    def watched(sequence: TokenSequence, wanted: Pass) -> None:
        seen.append(wanted)
        begin(sequence, wanted)

    with edgedec.load(bundle) as engine:
        engine.generate(PROMPTS[0], request("exit"))
        monkeypatch.setattr(TokenSequence, "begin", watched)
        found = engine.generate(PROMPTS[0], request("exit"))
    own = [wanted for wanted in seen if wanted.sequence.model.n_layers == N_LAYERS]
    rounds = [wanted for wanted in own if wanted.layers is not None]
    assert len(own) - len(rounds) <= 2  # the prompt's end, and a round with room for one token
    late = [wanted for wanted in rounds if wanted.layers and wanted.layers.start]
    assert {(wanted.layers.start, wanted.layers.stop) for wanted in late if wanted.layers} <= {
        (layer, N_LAYERS) for layer in EXITS
    }
    n_early = sum(len(w.tree) - w.n_known for w in rounds if w.layers and not w.layers.start)
    assert n_early == sum(len(wanted.tree) for wanted in late)  # each row once
    assert found.stats.n_accepted > 5


@pytest.mark.parametrize(("costs", "is_used"), [({1: 0.1, 2: 0.15}, True), ({1: 2, 2: 2}, False)])
def test_auto_takes_the_exit_that_pays(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, costs: dict[int, float], is_used: bool
) -> None:
    """Whatever passes take here: a step 10 ms, every further row 1 ms, all else about nothing."""

    def fixed(book: CostBook, role: str) -> CostTable:
        table = CostTable({m: 9.0 + m for m in (1, 2, 4, 8, 16)})
        return table if role == TARGET else table.scaled(costs[1])

    monkeypatch.setattr(CostBook, "of", fixed)
    ticks = itertools.count(1)
    monkeypatch.setattr(BusyClock, "now_s", lambda _: 1e-9 * next(ticks))
    clock = SimpleNamespace(perf_counter=lambda: 1e-9 * next(ticks))
    monkeypatch.setattr(passes_module, "time", clock)
    monkeypatch.setattr(head_source, "_share", lambda entry, target, exit_layer: costs[exit_layer])
    with edgedec.load(bundle) as engine:
        found = [engine.generate(prompt, request("auto")) for prompt in PROMPTS]
        stream = engine.stream("other words", request("auto", max_new_tokens=60))
        assert list(stream)
    drafted = [result.stats.by_drafter().get("exit") for result in found]
    n_accepted = sum(counts.n_accepted for counts in drafted if counts)
    assert n_accepted > 10 if is_used else not any(drafted)
    assert ("exit: behind layer 2" in "\n".join(stream.explain())) == is_used


@pytest.mark.parametrize("n_passes", range(1, 12))
def test_a_round_may_end_anywhere(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, n_passes: int
) -> None:
    begin, n_left = TokenSequence.begin, [n_passes]

    def interrupted(sequence: TokenSequence, wanted: Pass) -> None:
        n_left[0] -= 1
        if not n_left[0]:
            raise KeyboardInterrupt
        begin(sequence, wanted)

    with edgedec.load(bundle) as engine:
        expected = engine.generate(PROMPTS[1], request("plain"))
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(TokenSequence, "begin", interrupted)
            engine.generate(PROMPTS[1], request("exit"))
        found = engine.generate(PROMPTS[1], request("exit"))
        assert found.token_ids == expected.token_ids
        check_rows(engine, [*engine.encode(PROMPTS[1]), *found.token_ids][:-1])


def test_it_drafts_to_the_end_of_the_context(bundle: Path) -> None:
    with edgedec.load(bundle) as engine:
        n = engine.context - len(engine.encode(PROMPTS[1]))
        plain, found = (
            engine.generate(PROMPTS[1], request(m, max_new_tokens=n)) for m in ("plain", "exit")
        )
        assert found.token_ids == plain.token_ids
        assert not found.stats.failed_drafters


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"exit": ExitConfig((6,))}, "--exit 6: expected 1 to 5 of the 6 layers"),
        ({"exit": ExitConfig((2,)), "device_target": "portable"}, "early exits need a fused"),
        ({"exit": ExitConfig((2,)), "compiler": "tvm"}, "early exits need a fused graph"),
    ],
)
def test_what_cannot_have_exits_says_so(
    bundle: Path, tmp_path: Path, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        export(ExportConfig(str(bundle.parent / "hf"), tmp_path / "x.edgedec", **fields))
    assert not (tmp_path / "x.edgedec").exists()


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model", "0" * 32, "was trained for the model 000000000000, this one is"),
        ("hidden_layers", [3], "needs hidden states of layer 3, the model's graph returns"),
        ("hidden_layers", [], "names no exit"),
        ("hidden_layers", [6], "names no exit"),
        ("held_out", [0.5], "held_out"),
        ("kind", "other", "expected one of eagle, hydra, medusa, exit, adapter"),
    ],
)
def test_exits_of_something_else_are_refused(
    bundle: Path, tmp_path: Path, key: str, value: Any, text: str
) -> None:
    broken = Path(shutil.copytree(bundle, tmp_path / "broken.edgedec"))
    fields = json.loads((broken / "manifest.json").read_text())
    fields["head"][key] = value
    (broken / "manifest.json").write_text(json.dumps(fields))
    with pytest.raises(BundleError, match=text):
        edgedec.load(broken)


def test_a_bundle_without_exits_says_so(bundle: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(bundle, tmp_path / "plain.edgedec"))
    fields = json.loads((plain / "manifest.json").read_text())
    del fields["head"]
    (plain / "manifest.json").write_text(json.dumps(fields))
    with edgedec.load(plain) as engine, pytest.raises(ConfigError, match="again with --exit"):
        engine.generate("hello", GenerationConfig(method="exit"))
    with edgedec.load(bundle) as engine, pytest.raises(ConfigError, match="train one with edgedec"):
        engine.generate("hello", dataclasses.replace(request("eagle")))
