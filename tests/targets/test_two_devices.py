"""Bundles whose draft model is made for another device than their target model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import edgedec
from edgedec import Engine, EngineOptions, GenerationConfig, SamplingConfig
from edgedec.apps.cli import main
from edgedec.export.config import DraftModelConfig, ExportConfig
from edgedec.export.pipeline import export
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest
from edgedec.runtime.methods.draft_source import find_draft

GgufMaker = Callable[..., Path]

PROMPT = "he hello hello he hello he 12 12 he hello hello he"
PAIRS = [("cpu", "ort"), ("ort", "cpu"), ("cpu", "openvino"), ("openvino", "cpu")]
BACKENDS = {"cpu": "fused", "ort": "ort", "openvino": "openvino"}


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Targets of the target and of the draft model."""
    target, draft = request.param
    if "openvino" in request.param:
        pytest.importorskip("openvino")
    return target, draft


def exported(gguf: Path, path: Path, target: str, draft: str) -> Path:
    """Returns a bundle of a model that drafts for itself, each time on a device of its own."""
    wanted = DraftModelConfig(str(gguf), "keep", device_target=draft)
    export(ExportConfig(str(gguf), path, device_target=target, context=128, draft=wanted))
    return path


@pytest.fixture(scope="module")
def bundle(
    smooth_gguf: Path, pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return exported(smooth_gguf, tmp_path_factory.mktemp("-".join(pair)) / "b", *pair)


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Iterator[Engine]:
    with edgedec.load(bundle, EngineOptions(threads=1)) as engine:
        yield engine


def test_the_manifest_says_what_runs_each_model(bundle: Path, pair: tuple[str, str]) -> None:
    models = read_manifest(bundle).models
    found = models["target"].contract.backend, models["draft"].contract.backend
    assert found == tuple(BACKENDS[name] for name in pair)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_whatever_drafts_the_text_is_the_targets(
    engine: Engine, pair: tuple[str, str], temperature: float
) -> None:
    sampling = SamplingConfig(temperature=temperature)
    config = GenerationConfig(max_new_tokens=24, ignore_eos=True, sampling=sampling, seed=3)

    def write(method: str) -> edgedec.GenerationResult:
        return engine.generate(PROMPT, replace(config, method=method))

    plain, drafted = write("plain"), write("draft")
    assert drafted.stats.n_accepted > 0
    assert drafted.lossless == plain.lossless == (True if pair[0] == "cpu" else "up to ties")
    if pair[0] == "cpu":
        assert drafted.token_ids == plain.token_ids == write("auto").token_ids


def test_costs_are_of_a_device(bundle: Path) -> None:
    source = find_draft(bundle, read_manifest(bundle), True, 1, 128)
    assert source is not None
    contract = replace(source.entry.contract, providers=("CUDAExecutionProvider",))
    other = replace(source, entry=replace(source.entry, contract=contract))
    assert other.role != source.role


@pytest.mark.robustness
def test_a_draft_model_runs_where_it_is_reported_or_not_at_all(
    bundle: Path, pair: tuple[str, str]
) -> None:
    if pair == ("cpu", "openvino"):
        edgedec.load(bundle, EngineOptions(draft_device="CPU")).close()
        with pytest.raises(ConfigError, match="device NPU is not here"):
            edgedec.load(bundle, EngineOptions(draft_device="NPU"))
    else:
        with pytest.raises(ConfigError, match=r"runs on no such device: .* --target openvino"):
            edgedec.load(bundle, EngineOptions(draft_device="CPU"))
    with pytest.raises(ConfigError, match="expected one of CPU, GPU, NPU"):
        EngineOptions(draft_device="TPU")
    with pytest.raises(ConfigError, match="need a draft model, and there is none"):
        edgedec.load(bundle, EngineOptions(draft=False, draft_provider="cpu"))


def test_bench_says_where_the_draft_model_runs(
    bundle: Path,
    pair: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": PROMPT}))
    words = f"bench {bundle} --prompts {prompts} --methods plain,draft --raw -t 1 -r 1".split()
    words += ["--max-new-tokens", "8", "--ignore-eos", "--allow-noise", "-o", "json"]
    if pair[1] == "cpu":  # a fused graph runs in one place only
        with pytest.raises(SystemExit) as ended:
            main([*words, "--draft-device", "CPU"])
        assert ended.value.code == 1
        assert "runs on no such device" in capsys.readouterr().err
        return
    option, here, elsewhere = {
        "ort": ("--draft-provider", "cpu", "cuda"),
        "openvino": ("--draft-device", "CPU", "NPU"),
    }[pair[1]]
    with pytest.raises(SystemExit) as ended:
        main([*words, option, here])
    assert not ended.value.code
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert settings[option.removeprefix("--").replace("-", "_")] == here
    with pytest.raises(SystemExit) as ended:
        main([*words, option, elsewhere])
    assert ended.value.code == 1
    assert elsewhere in capsys.readouterr().err
