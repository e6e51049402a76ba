"""`edgedec export --draft` and what `inspect` shows of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("The sky is blue because air scatters short waves of light most. " * 20)
    return path


@pytest.mark.slow
def test_export_and_inspect(cli: Cli, smollm2_gguf: Path, corpus: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "pair.edgedec"
    done = cli(
        "export", smollm2_gguf, "-o", bundle, "--context", 256, "--draft", smollm2_gguf,
        "--draft-vocabulary", 1024, "--draft-corpus", corpus, "--draft-quantization", "keep",
        "--json",
    )  # fmt: skip
    assert done.exit_code == 0
    phases = list(done.json["phase_ms"])
    assert phases.index("read") < phases.index("read draft") < phases.index("pack draft")
    assert "trim head of draft ..." in done.err
    draft = done.json["models"]["draft"]
    assert draft["trimmed_head_size"] == 1024
    assert draft["name"].startswith("SmolLM2")

    shown = cli("inspect", bundle)
    for fact in ("target", "draft", "head of 1024 tokens", "draft/head_ids.bin", "1024"):
        assert fact in shown.out
    document = cli("inspect", bundle, "--json").json
    assert document["models"]["draft"]["head_ids"] == "draft/head_ids.bin"
    assert document["models"]["draft"]["config"]["trimmed_head_size"] == 1024


def test_wrong_options(cli: Cli, smollm2_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    done = cli("export", smollm2_gguf, "-o", out, "--draft-vocabulary", 99)
    assert done.exit_code == 1
    assert "--draft" in done.error
    for wrong in ("many", "0", "-3"):
        done = cli("export", smollm2_gguf, "-o", out, "--draft", "x", "--draft-vocabulary", wrong)
        assert done.exit_code == 2
    done = cli("export", smollm2_gguf, "-o", out, "--draft", "nowhere")
    assert done.exit_code == 1
    assert "no model 'nowhere'" in done.error
    assert list(tmp_path.iterdir()) == []
