"""`edgedec run --beams`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


@pytest.mark.e2e
def test_prints_the_best_text(cli: Cli, smollm2_bundle: Path) -> None:
    command = ["run", smollm2_bundle, "Name three rivers.", "-n", 8]
    done = cli(*command, "--beams", 3)
    assert done.exit_code == 0, done.err
    assert "best of 3 beams" in done.err
    found = cli(*command, "--beams", 4, "--beam-groups", 4, "--json").json
    assert len(found["beams"]) == 4
    assert len({tuple(one["token_ids"]) for one in found["beams"]}) > 1
    assert found["text"] == found["beams"][0]["text"]
    greedy = cli(*command, "--temperature", 0, "--json").json
    one = cli(*command, "--beams", 1, "--json").json
    assert one["beams"][0]["token_ids"] == greedy["token_ids"]


def test_options_that_do_not_go_together(cli: Cli, smollm2_bundle: Path) -> None:
    command = ["run", smollm2_bundle, "x"]
    assert "--beam-groups needs --beams" in cli(*command, "--beam-groups", 2).error
    assert "--beams cannot be combined with" in cli(*command, "--beams", 2, "--best-of", 2).error
    assert (
        "expected a multiple of the groups" in cli(*command, "--beams", 3, "--beam-groups", 2).error
    )
