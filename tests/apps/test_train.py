"""`edgedec train kv`, and prompts read with its maps."""

from __future__ import annotations

import json
import os
import shutil
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgedec
from edgedec.apps.evaluation.pruned import PrunedModel
from edgedec.apps.measuring import loop
from edgedec.apps.measuring.disturbance import MeasuringWindow
from edgedec.models.manifest import read_manifest
from edgedec.runtime.sequences.affinity import Affinity
from edgedec.runtime.sequences.sequence import TokenSequence
from edgedec.runtime.sequences.token_tree import TokenTree
from edgedec.training.kv_maps.kv_progress import CorpusWindows, FitFile

from .conftest import Cli

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "export"


def copied(bundle: Path, folder: Path) -> Path:
    """Returns a copy of a bundle that may be written into."""
    return Path(shutil.copytree(bundle, folder / "own.edgedec", copy_function=os.link))


@pytest.fixture(scope="module")
def trained(small_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with maps from layer 20 of 30."""
    from edgedec.apps.cli import main

    bundle = copied(small_bundle, tmp_path_factory.mktemp("trained"))
    with pytest.raises(SystemExit) as stopped:
        main(
            [
                *("train", "kv", str(bundle), "--corpus", str(CORPUS)),
                *("--exit", "20", "--max-tokens", "2500"),
            ]
        )
    assert not stopped.value.code
    return bundle


@pytest.fixture(scope="module")
def prompt_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompt") / "long.txt"
    path.write_text((ROOT / "models" / "config.py").read_text()[:2500])
    return path


def test_maps_are_part_of_the_bundle(cli: Cli, trained: Path) -> None:
    entry = read_manifest(trained).auxiliary["kv_maps"]
    assert (entry.exit_layer, entry.n_tokens, entry.corpus) == (20, 2500, str(CORPUS))
    assert 0 < entry.unexplained < entry.held_out < 1
    assert sorted(f"auxiliary/{p.name}" for p in (trained / "auxiliary").iterdir()) == sorted(
        entry.files
    )
    assert cli("inspect", trained, "--verify").exit_code == 0


def test_the_text_does_not_change(cli: Cli, trained: Path, prompt_file: Path) -> None:
    asked = ("--prompt-file", prompt_file, "--raw", "-n", 12, "--method", "plain", "--json",
             "--prefix-disk", 0)  # fmt: skip
    exact = cli("run", trained, *asked, "--prefill", "exact").json
    found = cli("run", trained, *asked, "--prefill", "progressive").json
    assert found["token_ids"] == exact["token_ids"]
    assert found["lossless"]
    assert found["stats"]["n_provisional"] == 8
    assert 0 < found["provisional_ms"] < found["ttft_ms"]
    assert (exact["provisional_ms"], exact["stats"]["n_provisional"]) == (0, 0)
    auto = cli("run", trained, *asked).json
    assert auto["stats"]["n_provisional"] == 0  # 20 of 30 layers would not pay
    approximate = cli("run", trained, *asked, "--prefill", "predicted")
    assert not approximate.json["lossless"]
    assert "this is approximate: later layers see predictions" in approximate.err


def test_maps_are_replaced_as_a_whole(cli: Cli, trained: Path, tmp_path: Path) -> None:
    bundle = copied(trained, tmp_path)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for i in range(3):
        (corpus / f"{i}.txt").write_text(" ".join(f"{n} times {i} is" for n in range(400)))
    done = cli("train", "kv", bundle, "--corpus", corpus, "--max-tokens", 2500, "--json")
    assert done.exit_code == 0
    assert done.json["exit_layer"] == 15
    measured = done.json["measured"]  # pieces of the second text, on which nothing was fitted
    assert (measured["n_texts"], measured["n_prompt_tokens"]) == (3, 256)
    assert measured["n_provisional"] == 24
    assert measured["first_ratio"] > 0
    assert measured["whole_ratio"] > 0
    files = read_manifest(bundle).auxiliary["kv_maps"].files
    assert sorted(f"auxiliary/{p.name}" for p in (bundle / "auxiliary").iterdir()) == sorted(files)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--corpus", "nowhere"), "got nowhere, expected a text file or a folder"),
        (("--corpus", CORPUS, "--exit", 30), "--exit is 30, expected 1 to 29 of 30 layers"),
        (("--corpus", CORPUS, "--max-tokens", 100), "too few to fit maps from 64 features"),
    ],
)
def test_what_cannot_be_fitted(
    cli: Cli, small_bundle: Path, tmp_path: Path, arguments: tuple[Any, ...], text: str
) -> None:
    bundle = copied(small_bundle, tmp_path)
    before = (bundle / "manifest.json").read_text()
    assert text in cli("train", "kv", bundle, *arguments).error
    assert (bundle / "manifest.json").read_text() == before
    assert not (bundle / "auxiliary").exists()


def test_a_bundle_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.edgedec"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "def is_prime("}\n')
    commands = ("train", "kv", wrong, "--corpus"), ("tune", wrong, "--prompts")
    for command in commands:
        assert "found nothing, expected a bundle directory" in cli(*command, prompts).error


def test_prefill_without_maps(cli: Cli, small_bundle: Path) -> None:
    for mode in ("progressive", "predicted"):
        text = cli("run", small_bundle, "Hi", "--prefill", mode).error
        assert f"prefill {mode} needs KV maps" in text
    odd = cli("run", small_bundle, "Hi", "--prefill", "soon")
    assert "prefill is 'soon', expected" in odd.error


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("model", "0" * 32, "were fitted for the model 000000000000, this one is"),
        ("exit_layer", 30, "begin after layer 30, the model has layers 1 to 30"),
        ("kv_format", "int8", "write a int8 KV cache, the model's is float16"),
    ],
)
def test_maps_of_something_else_are_refused(
    trained: Path, tmp_path: Path, key: str, value: Any, text: str
) -> None:
    bundle = copied(trained, tmp_path)
    manifest = json.loads((bundle / "manifest.json").read_text())
    manifest["auxiliary"]["kv_maps"][key] = value
    (bundle / "manifest.json").unlink()
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(edgedec.BundleError, match=text):
        edgedec.load(bundle)


@pytest.mark.usefixtures("hasty_bench")
def test_first_tokens_are_measured_in_turn(
    cli: Cli, trained: Path, small_bundle: Path, prompt_file: Path
) -> None:
    asked = ("--ttft", "300", "--text", prompt_file, "--answer-tokens", 4, "-r", 1, "--allow-noise")
    document = cli("bench", trained, *asked, "-o", "json").json
    assert document["kv_maps"]["relative_flops"] == 20 / 30
    (row,) = document["rows"]
    assert (row["n"], row["n_prompts"], row["n_same_text"]) == (300, 1, 1)
    assert row["n_held"] <= row["n_provisional"] == 3
    assert 0 < row["provisional_ms"] < row["confirmed_ms"]
    table = cli("bench", trained, *asked).out
    assert "| prompt | exact ms | provisional ms |" in " ".join(table.split()).replace("  ", " ")
    assert "lacks: fit them with" in cli("bench", small_bundle, *asked).error
    assert "--ttft needs a text" in cli("bench", trained, "--ttft", "300").error
    assert "--text needs --ttft" in cli("bench", trained, "--text", prompt_file).error
    assert "--rows cannot be combined with --ttft" in cli("bench", trained, *asked, "-m", "4").error
    long = ("--ttft", "8000", "--text", prompt_file, "--answer-tokens", 4)
    assert "tokens, expected at least 8000" in cli("bench", trained, *long).error


@pytest.mark.usefixtures("hasty_bench")
def test_first_tokens_of_a_disturbed_repetition_do_not_count(
    cli: Cli, trained: Path, prompt_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others_s = chain([1.0] * 4, repeat(0.0))  # two runs each of the warm-up and the first time
    window = lambda watch, n, own_s: MeasuringWindow(1.0, own_s, next(others_s), 0.0, 0.0)  # noqa: E731
    monkeypatch.setattr(loop.Watch, "stop", window)
    asked = ("--ttft", "100", "--text", prompt_file, "--answer-tokens", 2, "-r", 1, "-o", "json")
    (row,) = cli("bench", trained, *asked).json["rows"]
    assert row["n_prompts"] == 1


def test_predictions_are_evaluated_beside_what_costs_as_much(
    cli: Cli, trained: Path, small_bundle: Path, tmp_path: Path
) -> None:
    data = tmp_path / "maths.jsonl"
    question = "A farmer has twelve cows and buys three times as many sheep. How many animals now?"
    data.write_text(json.dumps({"question": question, "answer": "#### 48"}) + "\n")
    asked = ("--task", "gsm8k", "--data", data, "-n", 12, "--settings", "plain; predicted; pruned")
    done = cli("eval", trained, *asked, "--json")
    assert done.exit_code == 0, done.err
    rows = {row["label"]: row for row in done.json["settings"]}
    assert [row["lossless"] for row in rows.values()] == [True, False, False]
    assert rows["pruned"]["facts"]["models"] == "target model without later layers"
    answers = {s["setting"]: s["answer"] for s in done.json["samples"]}
    assert answers["pruned"] != answers["plain"]
    assert "which this bundle lacks" in cli("eval", small_bundle, *asked).error


def test_the_search_for_other_texts(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "tools/fuzz")
    import provisional

    with edgedec.load(trained, edgedec.EngineOptions(context=512)) as engine:
        tokens = engine.tokenizer.encode((ROOT / "models" / "config.py").read_text())
        assert provisional.compare(engine, tokens, 0, 6) == 5 * len(provisional.SAMPLERS)


@pytest.mark.parametrize("n_kept", [30, 29])
def test_a_model_without_layers(small_bundle: Path, n_kept: int) -> None:
    entry = read_manifest(small_bundle).target
    tokens = TokenTree.chain(range(100, 112))
    model = PrunedModel(small_bundle / entry.graph, entry, n_kept, 1, Affinity())
    rows = TokenSequence(model, 64).forward(tokens, (11,))
    with edgedec.load(small_bundle) as engine:
        gates = [i // 2 != 28 or n_kept == 30 for i in range(60)]
        expected = engine.new_sequence().forward(tokens, (11,), layer_gates=gates)
        assert np.array_equal(rows.logits, expected.logits)


@pytest.mark.robustness
def test_a_killed_fit_goes_on_where_it_ended(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edgedec.training.kv_maps import kv_progress
    from edgedec.training.kv_maps.fit_maps import corpus_windows, fit

    bundle = copied(trained, tmp_path)
    config = read_manifest(bundle).target.config
    monkeypatch.setattr(kv_progress, "_SAVE_S", 0.0)
    monkeypatch.setattr(kv_progress, "_MIN_READING", 0)
    with edgedec.load(bundle) as engine:
        windows = list(corpus_windows([CORPUS], engine.tokenizer.encode, 2500))
        whole = fit(engine.new_sequence(), config, 20, CorpusWindows(windows))

        def killed(n_tokens: int) -> None:
            if n_tokens > sum(map(len, windows[:2])):
                raise KeyboardInterrupt

        reading = CorpusWindows(windows, killed, FitFile(bundle, ("a",)))
        with pytest.raises(KeyboardInterrupt):
            fit(engine.new_sequence(), config, 20, reading)
        counts: list[int] = []
        reading = CorpusWindows(windows, counts.append, FitFile(bundle, ("a",)))
        again = fit(engine.new_sequence(), config, 20, reading)
        other = FitFile(bundle, ("b",)).load([(1, 1)])
    assert counts[0] == sum(map(len, windows[:3]))  # two windows were not read again
    assert again.n_tokens == whole.n_tokens
    for one, two in zip(whole.maps, again.maps, strict=True):
        assert np.array_equal(one.weights, two.weights)
        assert np.array_equal(one.bias, two.bias)
    assert other.n_tokens == 0
    path = FitFile(bundle, ("a",)).path
    path.write_bytes(path.read_bytes()[:5000])
    hidden, targets = config.hidden_size, len(whole.maps) * len(whole.maps[0].bias)
    assert FitFile(bundle, ("a",)).load([(hidden, targets)]).n_tokens == 0


def test_a_finished_fit_leaves_no_file(trained: Path) -> None:
    assert not FitFile(trained, ()).path.exists()
