"""`edgedec suggest --edit`: the edit of a file that follows those that a diff shows."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from edgedec.apps.console.option import option
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.terminal import note, print_json, write_out
from edgedec.apps.options.text_files import stated_text
from edgedec.models.errors import ConfigError
from edgedec.runtime.opening.load import load
from edgedec.runtime.opening.options import EngineOptions


@dataclass(frozen=True, kw_only=True)
class EditOptions:
    """Which edit is looked for."""

    edit: Annotated[
        Path | None, option("FILE", "Predict the next edit of FILE instead. Needs --diff.")
    ] = None
    diff: Annotated[
        Path | None,
        option(
            "RECENT",
            "Unified diff of what was edited lately and is in FILE by now, the latest last.",
        ),
    ] = None
    line: Annotated[
        int | None,
        typer.Option(min=1, help="Line of FILE to look around. Default: that of the last edit."),
    ] = None
    edit_format: Annotated[
        str,
        typer.Option(
            help="How the model is asked: instruction, sweep, sweep-2, zeta, zeta-2, zeta-2.1 or "
            "instinct."
        ),
    ] = "instruction"
    min_edit_probability: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=1.0,
            help="Show no edit that is less likely (default: what the bundle was calibrated to, or "
            "0.5).",
        ),
    ] = None

    def check(self, has_prompt: bool) -> None:
        """Refuses options that do not go together.

        Raises:
            ConfigError: It says which, and what to do.
        """
        others = [name for name in ("diff", "line") if getattr(self, name) is not None]
        if self.edit is None and others:
            raise ConfigError(f"--{others[0]} needs --edit FILE, the file that is edited")
        if self.edit is not None and self.diff is None:
            raise ConfigError("--edit needs --diff RECENT, a unified diff of the latest edits")
        if self.edit is not None and has_prompt:
            raise ConfigError("got a text and --edit, expected one of them")


def suggest_edit(bundle: Path, options: EditOptions, loading: EngineOptions, json: bool) -> None:
    """Writes the next edit as a unified diff, or as JSON; a note if none follows."""
    from edgedec.autocomplete.document import Document
    from edgedec.autocomplete.edits import EditConfig, EditHistory, EditPredictor
    from edgedec.autocomplete.edits.lines import lines_of, lines_with_ends

    assert options.edit is not None
    assert options.diff is not None
    text = stated_text(options.edit)
    history = EditHistory()
    line = _note_changes(history, options, lines_of(text))
    cursor = sum(map(len, lines_with_ends(text)[:line]))
    document = Document(text, cursor, options.edit.as_posix())
    config = EditConfig(format=options.edit_format, min_probability=options.min_edit_probability)
    with (
        ProgressBars(count_amount) as bars,
        load(bundle, loading, bars.report) as engine,
        EditPredictor(engine, config, history) as predictor,
    ):
        edit = predictor.update(document).result()
    if json:
        print_json({"edit": None if edit is None else asdict(edit)})
    elif edit is None:
        note("no edit follows, or none that is likely enough; --min-edit-probability 0 shows any")
    else:
        note(f"{100 * edit.probability:.0f} % likely")
        write_out(_diff(options.edit, text, edit.applied(text)))


def _note_changes(history: Any, options: EditOptions, lines: Sequence[str]) -> int:
    """Notes what the diff shows; returns the line to look around, from 0.

    Raises:
        ConfigError: The diff is none, or FILE is not as the diff leaves it.
    """
    from edgedec.autocomplete.edits.diffs import read_diff

    assert options.edit is not None
    assert options.diff is not None
    name, line = options.edit.as_posix(), 0
    changes = read_diff(stated_text(options.diff))
    if not changes:
        raise ConfigError(f"{options.diff} shows no change: make a diff of the latest edits")
    for change in changes:
        if change.name and not f"/{name}".endswith(f"/{change.name}"):
            history.add(change)  # of another file
            continue
        end = change.line + len(change.after)
        if tuple(lines[change.line : end]) != change.after:
            raise ConfigError(
                f"line {change.line + 1} of {name} is not as {options.diff} leaves it: pass the "
                "file as it is after these edits"
            )
        history.add(replace(change, name=name))
        line = change.line
    line = line if options.line is None else options.line - 1
    if line > len(lines):
        raise ConfigError(f"--line is {line + 1}, expected 1 to {len(lines)}, the lines of {name}")
    return line


def _diff(path: Path, old: str, new: str) -> str:
    """Returns a unified diff that `patch -p1` and `git apply` take in the current folder.

    Both refuse a file that lies elsewhere; its name is the path, as `diff -u` writes it.
    """
    from edgedec.autocomplete.edits.lines import lines_with_ends

    if path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    before, after = ("", "") if path.is_absolute() else ("a/", "b/")
    name = path.as_posix()
    rows = difflib.unified_diff(
        lines_with_ends(old), lines_with_ends(new), f"{before}{name}", f"{after}{name}"
    )
    marked = (
        row if row.endswith("\n") else f"{row}\n\\ No newline at end of file\n" for row in rows
    )
    return "".join(marked)
