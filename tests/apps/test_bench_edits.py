"""`edgedec bench --edits`: which edits are replayed, what they are worth, when they are shown."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from edgedec.apps.bench.edit_bounds import choose_bound, quality
from edgedec.apps.bench.edit_sources import EditCase, read_cases
from edgedec.apps.bench.edit_verdicts import Verdict, judge
from edgedec.apps.bench.edits import _counts, _n_identical
from edgedec.apps.bench.edits_job import EditRow, WindowResult
from edgedec.apps.bench.edits_rows import RowFile
from edgedec.autocomplete.edits import Edit
from edgedec.models.errors import ConfigError
from edgedec.models.manifest import read_manifest

from .conftest import Cli

BEFORE = "def area(width):\n    a = 1\n    b = 2\n    c = 3\n    return width\n"
AFTER = BEFORE.replace("width", "w")


def write_line(path: Path, before: str = BEFORE, after: str = AFTER) -> Path:
    line = {"commit": "one", "path": "area.py", "before": before, "after": after}
    path.write_text(json.dumps(line) + "\n")
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Returns a git repository whose second commit renames a parameter."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for text in (BEFORE, AFTER):
        (folder / "area.py").write_text(text)
        for arguments in (["init", "-q"], ["add", "area.py"], ["commit", "-qm", "change"]):
            subprocess.run([*git, *arguments], check=True)
    return folder


def test_a_case_for_each_hunk_of_a_commit(repository: Path, tmp_path: Path) -> None:
    first, second = read_cases(repository, 10)
    assert first.now[0] == BEFORE.replace("(width)", "(w)")
    assert first.before_key == (BEFORE, len("def area(w"))
    assert first.follows
    assert second.now == (AFTER, AFTER.index("return w") + len("return w"))
    assert not second.follows
    assert first.group == second.group
    recorded = read_cases(write_line(tmp_path / "edits.jsonl"), 10)
    assert [case.now for case in recorded] == [first.now, second.now]


def test_what_was_typed_lacks_its_last_key() -> None:
    source = "a\nb\n"
    case = next(iter(_cases(source, "a\nlonger\nb\n")))
    assert case.before_key == ("a\nlonge\nb\n", 7)
    assert case.now == ("a\nlonger\nb\n", 8)


def _cases(before: str, after: str) -> list[EditCase]:
    from edgedec.apps.bench.edit_sources import EditedFile
    from edgedec.apps.bench.edit_sources import _cases as cases

    return list(cases([EditedFile("one", "a.py", before, after)]))


@pytest.mark.parametrize(
    ("old", "new", "worth"),
    [
        ("    return width\n", "    return w\n", Verdict.RIGHT),
        ("    return width\n", "    return w2\n", Verdict.NEAR),
        ("    return width\n", "    pass  # never returns\n", Verdict.WRONG),
        ("    b = 2\n", "    b = 5\n", Verdict.WRONG),
        ("    b = 2\n", "", Verdict.WRONG),
    ],
)
def test_what_an_edit_is_worth(old: str, new: str, worth: Verdict) -> None:
    now = BEFORE.replace("(width)", "(w)")
    start = now.index(old)
    edit = Edit("area.py", start, start + len(old), new, 0, start, 0.9, 1.0, 1)
    assert judge(edit, now, AFTER) is worth


def test_lines_put_in_are_right_where_they_are_expected() -> None:
    edit = Edit("a.py", 2, 2, "new\n", 1, 2, 0.9, 1.0, 1)
    assert judge(edit, "a\nb\n", "a\nnew\nb\n") is Verdict.RIGHT
    assert judge(edit, "a\nb\n", "a\nb\nnew\n") is Verdict.WRONG
    assert judge(edit, "a\nb\n", "a\nb\n") is Verdict.WRONG


def row(key: str, verdict: Verdict | None, probability: float, follows: bool = True) -> EditRow:
    made = None if verdict is None else probability
    window = WindowResult(made, verdict, 5.0, 10, 2, 4, 2, "0")
    return EditRow("f", key, key, "0", "auto", follows, (window,))


def test_the_bound_is_the_lowest_that_is_good_enough() -> None:
    rows = [row(f"good{i}", Verdict.RIGHT, 0.9) for i in range(6)]
    rows += [row(f"bad{i}", Verdict.WRONG, 0.6, follows=False) for i in range(6)]
    chosen = choose_bound(rows)
    assert chosen is not None
    assert 0.6 < chosen.bound <= 0.65
    assert (chosen.good_share, chosen.silent_share) == (1.0, 1.0)
    assert quality(rows, 0.5).good_share == 0.5
    assert quality(rows, 0.5).silent_share == 0.0
    assert choose_bound([row("bad", Verdict.WRONG, 0.9)]) is None


def test_a_bound_never_shows_what_was_not_replayed() -> None:
    """With the bound 0 an edit need have nothing to do with a change; replayed ones have."""
    chosen = choose_bound([row("good", Verdict.RIGHT, 0.01), row("better", Verdict.RIGHT, 0.9)])
    assert chosen is not None
    assert chosen.bound == 0.05


def test_rows_outlive_a_run_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    kept = row("a", Verdict.NEAR, 0.5)
    RowFile(path).add(kept)
    with path.open("a") as file:
        file.write('{"fingerprint": "f", "ke')
    again = RowFile(path)
    assert again.get("f", "a") == kept
    assert path.read_text().count("\n") == 1
    path.write_text('{"no": "row"}\n')
    with pytest.raises(ConfigError, match=r"rows.jsonl:1 is no row"):
        RowFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no JSON\n", "edits.jsonl:1 is not JSON"),
        ('{"commit": "one"}\n', "edits.jsonl:1"),
        ("", "has no edits that can be replayed"),
    ],
)
def test_files_that_hold_no_edits_are_refused(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "edits.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read_cases(path, 1)
    with pytest.raises(ConfigError, match="name a git repository"):
        read_cases(tmp_path, 1)


@pytest.mark.parametrize(
    ("n_replayed", "methods", "lines"),
    [
        (4, 1, ""),
        (4, 2, "- answers identical under all methods: 2 of 4\n"),
        (3, 1, "- replayed before the end: 3 of 4\n"),
        (
            3,
            2,
            "- replayed before the end: 3 of 4\n- answers identical under all methods: 2 of 3\n",
        ),
    ],
)
def test_answers_are_counted_of_the_cases_replayed(
    n_replayed: int, methods: int, lines: str
) -> None:
    rows = [row(f"case{i}", Verdict.RIGHT, 0.9) for i in range(n_replayed)]
    changed = [replace(r, windows=(replace(r.windows[0], text_sha256="1"),)) for r in rows[2:]]
    n_identical = _n_identical([rows, [*rows[:2], *changed]][:methods])
    counts = {"n_cases": 4, "n_replayed": n_replayed, "n_identical": n_identical}
    assert _counts(counts) == lines


@pytest.mark.slow
def test_edits_are_replayed_under_each_method(cli: Cli, small_bundle: Path, tmp_path: Path) -> None:
    """Texts are the same under each method, and a second run takes the rows of the first."""
    edits = write_line(tmp_path / "edits.jsonl")
    rows = tmp_path / "rows.jsonl"
    command = [
        "bench", str(small_bundle), "--edits", str(edits), "--edit-methods", "plain,rewrite",
        "--edit-rows", str(rows), "-o", "json",
    ]  # fmt: skip
    first = json.loads(cli(*command).out)
    assert (first["n_cases"], first["n_identical"]) == (2, 2)
    assert [row["method"] for row in first["rows"]] == ["plain", "rewrite"]
    before = rows.read_bytes()
    assert json.loads(cli(*command).out)["rows"] == first["rows"]
    assert rows.read_bytes() == before
    assert "edits" not in read_manifest(small_bundle).defaults
