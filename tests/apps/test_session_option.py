"""`edgedec run --session` and `edgedec chat --prefix-cache`."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgedec.export.config import ExportConfig
from edgedec.export.pipeline import export

Cli = Callable[..., Any]
PROMPT = "Name the planets of the solar system, one after the other."

pytestmark = pytest.mark.e2e


def test_a_session_goes_on(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    path = tmp_path / "planets.session"
    options = (smollm2_bundle, PROMPT, "-n", 8, "--session", path)
    first = cli("run", *options, "--json")
    assert first.exit_code == 0
    assert first.err.count("\n") == 1  # what is kept where, said once
    assert str(path) in first.err
    assert first.json["stats"]["n_reused_tokens"] == 0
    again = cli("run", *options, "--json")
    assert again.json["token_ids"] == first.json["token_ids"]
    n_prompt = first.json["n_prompt_tokens"]
    assert again.json["stats"]["n_reused_tokens"] == n_prompt - 1
    reported = cli("run", *options)
    assert reported.exit_code == 0
    assert f"holds {n_prompt + 7} tokens" in reported.err
    assert f"({n_prompt - 1} reused)" in reported.err


def test_a_damaged_session_is_refused_and_left(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "planets.session"
    path.write_bytes(b"something dear")
    done = cli("run", smollm2_bundle, PROMPT, "-n", 2, "--session", path)
    assert done.exit_code == 1
    assert "planets.session" in done.error
    assert path.read_bytes() == b"something dear"
    done = cli("run", smollm2_bundle, PROMPT, "--session", tmp_path / "no" / "folder")
    assert "there is no folder" in done.error


def test_a_rounded_session_is_smaller_and_says_so(
    cli: Cli, smollm2_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    whole, small = tmp_path / "whole.session", tmp_path / "small.session"
    prompt = "The red kite lives where woods and meadows are. " * 55
    options = ("run", smollm2_bundle, prompt, "--raw", "-n", 4, "--json")
    exact = cli(*options, "--session", whole)
    rounded = cli(*options, "--session", small, "--round-session")
    assert rounded.json["token_ids"] == exact.json["token_ids"]
    n_prompt = exact.json["n_prompt_tokens"]
    assert n_prompt > 520
    assert small.stat().st_size < 0.4 * whole.stat().st_size
    again = cli(*options, "--session", small, "--round-session", "--prefix-disk", 50)
    assert again.json["stats"]["n_reused_tokens"] == n_prompt - 1
    assert list(tmp_path.rglob("*.kv")) == []  # other runs read exact rows
    before = small.read_bytes()
    shown = cli("run", smollm2_bundle, prompt, "--raw", "-n", 4, "--session", small)
    assert "tokens, rounded: what follows is approximate" in shown.err
    later = cli("run", smollm2_bundle, prompt, "--raw", "-n", 4, "--session", small)
    assert "tokens, rounded: what follows is approximate" in later.err  # without --round-session
    small.write_bytes(before[:-1] + b"\1")
    assert "SHA-256" in cli(*options, "--session", small).error
    assert "needs --session" in cli(*options, "--round-session").error


def test_only_floats_are_rounded(cli: Cli, small_model: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "int8.edgedec"
    export(ExportConfig(str(small_model), bundle, kv_format="int8"))
    path = tmp_path / "a.session"
    done = cli("run", bundle, "Hi", "-n", 1, "--raw", "--session", path, "--round-session")
    assert "this KV cache cannot be rounded (keys |i1" in done.error
    assert not path.exists()


@pytest.mark.parametrize(("size", "is_remembered"), [(64, True), (0, False)])
def test_reset_and_the_prompt_cache(
    cli: Cli,
    smollm2_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    is_remembered: bool,
) -> None:
    lines = f"{PROMPT}\n/reset\nTell me a story.\n/reset\n{PROMPT}\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    done = cli("chat", smollm2_bundle, "-n", 8, "--json", "--prefix-cache", size)
    assert done.exit_code == 0
    first, _, third = done.json["turns"]
    assert third["token_ids"] == first["token_ids"]
    n_reused, n_prompt = third["stats"]["n_reused_tokens"], third["n_prompt_tokens"]
    assert (n_reused == n_prompt - 1) == is_remembered


def test_bad_size(cli: Cli, smollm2_bundle: Path) -> None:
    done = cli("chat", smollm2_bundle, "--prefix-cache", -1)
    assert done.exit_code == 2
