"""`edgedec run --quote`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
TEXT = "The Danube is 2,850 km long. It flows through ten countries."


@pytest.mark.e2e
def test_prints_a_span_of_the_file(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    text = tmp_path / "danube.txt"
    text.write_text(TEXT)
    command = ["run", smollm2_bundle, "How long is the Danube?", "--quote"]
    done = cli(*command, text)
    assert done.exit_code == 0, done.err
    assert done.out.strip() in TEXT
    assert "passes for" in done.err
    found = cli(*command, text, "--json").json
    assert TEXT.startswith(found["text"], found["offset"])
    assert found["probability"] > found["runner_up"]["probability"]
    assert found["n_computed"] < found["n_spans"]
    text.write_text(TEXT * 80)
    assert "the text is read in 2 parts: about" in cli(*command, text).err


@pytest.mark.robustness
def test_files_that_cannot_be_quoted(cli: Cli, smollm2_bundle: Path, tmp_path: Path) -> None:
    command = ["run", smollm2_bundle, "Which?", "--quote"]
    assert "cannot read" in cli(*command, tmp_path / "no.txt").error
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "is not UTF-8 text" in cli(*command, tmp_path / "latin.txt").error
    (tmp_path / "empty.txt").write_text(" \n")
    assert "expected text, and not only blanks" in cli(*command, tmp_path / "empty.txt").error
    both = cli(*command, tmp_path / "empty.txt", "--best-of", 2)
    assert "--quote cannot be combined with --best-of" in both.error
