"""`--method`, `--verifier`, `--draft-len` and `--draft-depth`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
PROMPT = "Count from one to ten: one, two, three, four, five, one, two, three,"

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("verifier", ["shared-gumbel", "deterministic", "typical"])
def test_what_is_approximate_says_so(cli: Cli, smollm2_bundle: Path, verifier: str) -> None:
    options = ("-n", 4, "--method", "lookup", "--temperature", 0.8, "--verifier", verifier)
    reported = cli("run", smollm2_bundle, PROMPT, *options)
    assert ("this is approximate" in reported.err) == (verifier == "typical")
    done = cli("run", smollm2_bundle, PROMPT, *options, "--json").json
    assert done["lossless"] == (verifier != "typical")


def test_limits_of_a_round(cli: Cli, smollm2_bundle: Path, cheap_rows: None) -> None:
    options = ("run", smollm2_bundle, "--raw", PROMPT, "-n", 24, "--method", "lookup", "--json")
    usual = cli(*options).json
    short = cli(*options, "--draft-len", 1).json
    flat = cli(*options, "--draft-depth", 2).json
    assert usual["token_ids"] == short["token_ids"] == flat["token_ids"]
    assert len(usual["stats"]["by_depth"]) > 2
    assert [len(one["stats"]["by_depth"]) for one in (short, flat)] == [1, 2]
    assert short["stats"]["n_proposed"] == short["stats"]["n_rounds"] > 0


@pytest.mark.parametrize("option", [("--draft-len", 0), ("--draft-len", 64), ("--draft-depth", 0)])
def test_limits_that_make_no_sense(cli: Cli, smollm2_bundle: Path, option: tuple[str, int]) -> None:
    assert cli("run", smollm2_bundle, PROMPT, *option).exit_code == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--method", "store"), "method store needs an n-gram store: name its file (--store FILE"),
        (("--method", "psychic"), "unknown method 'psychic', expected plain, auto"),
        (("--verifier", "judge"), "unknown verifier 'judge', expected one of shared-gumbel"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    cli: Cli, smollm2_bundle: Path, options: tuple[str, ...], text: str
) -> None:
    done = cli("run", smollm2_bundle, PROMPT, *options)
    assert done.exit_code == 1
    assert text in done.error
