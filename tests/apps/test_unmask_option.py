"""A model that fills masks in, from the command line and over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

from .conftest import Cli

torch = pytest.importorskip("torch", reason="needs the dev extra")
pytest.importorskip("transformers", reason="needs the dev extra")

from bidirectional_parity import MASK  # noqa: E402
from family_parity import SIZES, transformers  # noqa: E402
from llada_toy import save_as_llada  # noqa: E402

from tests.parity.toy_parity import TOKENIZER  # noqa: E402

pytestmark = pytest.mark.slow  # the file makes models first

NEEDS = "a model that writes from left to right, and this one fills masks in"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random LLaDA."""
    path = tmp_path_factory.mktemp("llada")
    torch.manual_seed(7)
    sizes = {**SIZES, "hidden_size": 48}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    save_as_llada(model, sizes, MASK, path)
    (path / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    return path


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Path:
    path = folder.parent / "masked.edgedec"
    export(ExportConfig(str(folder), path, device_target="portable"))
    return path


def test_run(cli: Cli, bundle: Path) -> None:
    done = cli("run", bundle, "--raw", "!#", "-n", 8, "--json", "--ignore-eos")
    assert done.exit_code == 0, done.err
    assert done.json["n_new_tokens"] == done.json["stats"]["n_passes"] == 8
    assert (done.json["method"], done.json["lossless"]) == ("confidence", True)
    text = "confidence:steps=2,block=4"
    fast = cli("run", bundle, "--raw", "!#", "-n", 8, "--json", "--ignore-eos", "--unmask", text)
    assert fast.json["stats"]["n_passes"] == 2
    assert (fast.json["method"], fast.json["lossless"]) == (text, False)
    assert "this is approximate: tokens are decided sooner than one by one" in fast.err


def test_the_rate_counts_all_tokens_and_all_of_the_time(cli: Cli, bundle: Path) -> None:
    """Blocks appear whole, so that tokens behind the first take next to no time."""
    arguments = ("run", bundle, "--raw", "!#", "-n", 8, "--ignore-eos")
    found = cli(*arguments, "--json").json
    total_ms = found["ttft_ms"] + 7 * found["tpot_ms"]
    assert found["tokens_per_s"] == pytest.approx(8000 / total_ms)
    assert re.search(r"first after \d+ ms · [\d.]+ tokens/s in all\n", cli(*arguments).err)


@pytest.mark.parametrize(
    "rule",
    ["localleap", "confidence:refresh=2", "localleap:anchor=0.01,relaxed=0"],
)
def test_every_rule_fills_all_in(cli: Cli, bundle: Path, rule: str) -> None:
    done = cli(
        "run", bundle, "--raw", "!#", "-n", 8, "--json", "--ignore-eos", "--unmask", rule,
        "--explain",
    )  # fmt: skip
    assert done.exit_code == 0, done.err
    assert done.json["n_new_tokens"] == 8
    assert done.json["stats"]["n_passes"] <= 8
    assert "rows decided 8 tokens" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--method", "lookup"), f"method lookup needs {NEEDS}"),
        (("--switch", "ead"), f"switch needs {NEEDS}"),
        (("--regex", "[a-z]+"), f"regex needs {NEEDS}"),
        (("--session", "x.session"), f"sessions need {NEEDS}"),
        (("--best-of", "2"), f"several tries at an answer need {NEEDS}"),
        (("--beams", "2"), f"suggestions, scores and searches need {NEEDS}"),
        (("--unmask", "fast"), "unmask rule is 'fast', expected one of confidence, localleap"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_refusals(
    cli: Cli,
    bundle: Path,
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("run", bundle, "--raw", "!#", "-n", 4, *arguments)
    assert done.exit_code == 1
    assert message in done.error
    assert not [*tmp_path.iterdir()]


def test_other_verbs(cli: Cli, bundle: Path) -> None:
    assert NEEDS in cli("suggest", bundle, "!#").error
    assert "fills masks in" in cli("bench", bundle, "-p", 4, "-n", 2, "--allow-noise").error
    done = cli("run", bundle, "--raw", "!#", "-n", 4, "--draft", bundle)
    assert "a model that fills masks in neither drafts nor checks drafts" in done.error


def test_no_draft_model_is_exported_beside_it(cli: Cli, folder: Path, tmp_path: Path) -> None:
    done = cli("export", folder, "-o", tmp_path / "b", "--draft", folder, "--target", "portable")
    assert "fills masks in, which neither drafts nor checks drafts" in done.error
    assert not [*tmp_path.iterdir()]


def test_serve(bundle: Path) -> None:
    pytest.importorskip("uvicorn")
    from .serve.conftest import Server

    server = Server([f"masked={bundle}"])
    try:
        asked: dict[str, Any] = {"model": "masked", "prompt": "!#", "max_tokens": 6}
        status, answer = server.ask("POST", "/v1/completions", asked)
        assert status == 200
        assert answer["usage"]["completion_tokens"] == 6
        status, answer = server.ask("POST", "/v1/completions", {**asked, "logprobs": 1})
        assert (status, answer["error"]["message"][:15]) == (400, "logprobs needs ")
        status, answer = server.ask("POST", "/v1/embeddings", {"model": "masked", "input": "!"})
        assert status == 400
        assert NEEDS in answer["error"]["message"]
    finally:
        server.end()
