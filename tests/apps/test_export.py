"""`edgedec export`, with the tiny models and with wrong input."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.export.options import Quantization
from edgedec.export.quantising.quantise import SCHEMES

Cli = Callable[..., Any]


def test_schemes_are_those_of_the_exporter() -> None:
    assert [scheme.value for scheme in Quantization] == list(SCHEMES)


@pytest.mark.slow
def test_report(cli: Cli, smollm2_gguf: Path, small_model: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "b.edgedec"
    done = cli("export", smollm2_gguf, "-o", bundle, "--context", 256, "--json")
    assert done.exit_code == 0
    report = done.json
    assert report["bundle"] == str(bundle)
    assert report["quantization"] == "keep"
    assert report["verification"]["top1_agreement"] == 1.0
    phases = list(report["phase_ms"])
    assert (phases[0], phases[-1]) == ("read", "seal")
    assert "pack ..." in done.err

    done = cli("run", bundle, "word " * 300)
    assert done.exit_code == 1
    assert "256" in done.error
    assert "context" in done.error

    assert "exists already" in cli("export", smollm2_gguf, "-o", bundle).error
    assert cli("export", small_model, "-o", bundle, "--force").exit_code == 0


@pytest.mark.slow
def test_int8_kv_cache(cli: Cli, smollm2_gguf: Path, small_model: Path, tmp_path: Path) -> None:
    """The export reports the error, on the screen, in its JSON and by `edgedec inspect`."""
    bundle = tmp_path / "b.edgedec"
    options = ("-o", bundle, "--context", 600, "--kv-cache")
    done = cli("export", smollm2_gguf, *options, "int8")
    assert done.exit_code == 0
    line = r"target with a KV cache of int8: KL (\S+) nats .* choice on ([\d.]+)% of (\d+) tokens"
    kl_nats, agreement, n_tokens = re.findall(line, " ".join(done.err.split()))[0]
    assert 0 < float(kl_nats) < 0.01
    assert float(agreement) > 90
    assert int(n_tokens) > 300
    done = cli("inspect", bundle)
    assert "kv_cache, kl_nats" in done.out
    assert "int8, 11.9 kB a token, 7.1 MB when the context is full" in done.out
    contract = cli("inspect", bundle, "--json").json["models"]["target"]["contract"]
    assert contract["kv"]["format"] == "int8"
    report = cli("export", small_model, *options, "int8", "--json", "--force").json
    assert report["verification"]["kv_cache"]["n_tokens"] > 300
    assert report["models"]["target"]["kv_format"] == "int8"
    refused = cli("export", small_model, *options, "int3", "--force")
    assert "KV cache format is 'int3', expected one of" in refused.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--quant", "int4"], "quantised already"),
        (["--context", "100000"], "context 100000 is more than the 8192 positions"),
        (["--context", "7"], "context 7 is less than the 8 tokens that graphs are verified on"),
        (["--hidden-layers", "7,31"], "hidden layer 31"),
        (
            ["--kv-cache", "int8", "--target", "portable"],
            "leave out --kv-cache, or choose another --target",
        ),
    ],
)
def test_options_that_do_not_fit(
    cli: Cli, smollm2_gguf: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    done = cli("export", smollm2_gguf, "-o", tmp_path / "b", *options)
    assert done.exit_code == 1
    assert message in done.error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.robustness
def test_broken_sources(cli: Cli, smollm2_gguf: Path, tmp_path: Path) -> None:
    out = tmp_path / "b"
    head = smollm2_gguf.open("rb").read(1 << 20)
    for name, content in {
        "cut.gguf": head,
        "magic.gguf": b"GGML" + head[4:],
        "e.gguf": b"",
    }.items():
        (tmp_path / name).write_bytes(content)
        done = cli("export", tmp_path / name, "-o", out)
        assert done.exit_code == 1
        assert name in done.error
    assert "no model 'nowhere'" in cli("export", "nowhere", "-o", out).error
    assert "config.json" in cli("export", tmp_path, "-o", out).error
    assert not out.exists()
