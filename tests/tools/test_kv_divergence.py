"""The tool that compares KV caches of two bundles, on SmolLM2."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

SCRIPT = Path(__file__).parents[2] / "tools" / "kv_divergence.py"
LINE = re.compile(
    r"(\S+)\.edgedec: ([\d.]+) MB, KL ([\d.]+) nats, .* same first choice ([\d.]+)%, \d of 2 "
    r"numbers found\n"
)

pytestmark = pytest.mark.e2e


def test_a_smaller_cache_differs_and_an_equal_one_does_not(
    smollm2_bundle: Path, smollm2_gguf: Path, tmp_path: Path
) -> None:
    smaller = tmp_path / "smaller.edgedec"
    export(ExportConfig(str(smollm2_gguf), smaller, kv_format="k5v4"))
    same = tmp_path / "same.edgedec"
    same.symlink_to(smollm2_bundle)
    text = tmp_path / "text.txt"
    text.write_text("The red kite is a bird of prey. It lives where woods and meadows are. " * 20)
    printed = subprocess.run(
        [
            sys.executable,
            SCRIPT,
            smollm2_bundle,
            same,
            smaller,
            text,
            *["--tokens", "232", "--scored", "40", "--rows", "64", "--needles", "2"],
            *["--rounded-session", tmp_path / "short.session"],
        ],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    measured = {
        name: (float(mb), float(kl), choice) for name, mb, kl, choice in LINE.findall(printed)
    }
    assert measured["same"][1:] == (0, "100.0")
    found = re.findall(r"(\d) of 2 numbers found\n", printed)
    assert len(found) == 4
    assert found[0] == found[1] == found[2]
    assert "rounded session: KL 0.00000 nats" in printed  # 192 tokens are too few
    assert 0 < measured["smaller"][1] < 0.1
    assert measured["smaller"][0] < 0.4 * measured["same"][0]


def test_a_text_that_is_too_short_is_refused(smollm2_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("A kite.")
    result = subprocess.run(
        [sys.executable, SCRIPT, smollm2_bundle, smollm2_bundle, text],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 2
    assert "tokens, expected 2048" in result.stderr


@pytest.mark.models
def test_llama_cpp_reads_the_same_text(
    smollm2_bundle: Path, smollm2_gguf: Path, tmp_path: Path
) -> None:
    pytest.importorskip("llama_cpp", reason="needs llama-cpp-python")
    text = tmp_path / "text.txt"
    text.write_text("The red kite is a bird of prey. It lives where woods and meadows are. " * 20)
    files = [smollm2_bundle, smollm2_bundle, text, "--gguf", smollm2_gguf]
    printed = subprocess.run(
        [sys.executable, SCRIPT, *files, "--tokens", "200", "--scored", "100", "--rows", "64"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ours, theirs = re.findall(r"(?:MB|f16:?),? perplexity ([\d.]+)", printed)
    # Both multiply by activations of 8 bits.
    assert float(theirs) == pytest.approx(float(ours), rel=0.03)
    (divergence,) = re.findall(r"q4_0: KL ([\d.]+) nats", printed)
    assert float(divergence) > 0.001
