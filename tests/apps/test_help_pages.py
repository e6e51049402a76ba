"""Help pages fit 80 columns, begin with examples, and group their options."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from edgedec.apps.verbs import VERBS, make_app

from .conftest import Cli


def _pages() -> Iterator[tuple[str, ...]]:
    yield ()
    for verb in VERBS:
        yield (verb,)
        command = get_command(make_app([verb]))
        found = command.commands[verb] if isinstance(command, TyperGroup) else command
        for name in found.commands if isinstance(found, TyperGroup) else ():
            yield verb, name


PAGES = list(_pages())


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_a_page_fits_80_columns(
    page: tuple[str, ...], cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = cli(*page, "--help").out.splitlines()
    assert lines[0].startswith(f"Usage: {' '.join(('edgedec', *page))}")
    assert [line for line in lines if len(line) > 80] == []
    if page:
        assert "Examples:" in lines[:8]


def test_examples_come_before_options_and_options_are_grouped(cli: Cli) -> None:
    page = cli("run", "--help").out
    headings = [line[:-1] for line in page.splitlines() if line[:1].isalpha() and line[-1:] == ":"]
    assert headings == [
        "Examples", "Arguments", "Common options", "Speculation", "Devices",
        "Models that fill masks in", "Sampling",
        "Structured output", "Switching between two models",
    ]  # fmt: skip


def test_help_is_a_verb_too(cli: Cli) -> None:
    assert cli("help", "run").out == cli("run", "--help").out
    assert cli("help", "models", "pull").out == cli("models", "pull", "--help").out
    assert cli("help").out == cli("--help").out


def test_shells_complete_verbs(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_EDGEDEC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "edgedec in")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert cli().out.split() == ["inspect"]
