"""Help pages: what a verb does, examples, then its options in groups. Made for 80 columns."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperCommand, TyperGroup

_EXAMPLES = "Examples:"
_EXTRA = "unexpected extra argument"
_COMMON = "Common options"
_LAST = "Labs"
_WIDTH = 80
_NAMES_WIDTH = 26  # names of options longer than this have a line of their own
_SUMMARY_LENGTH = 160  # of a verb in a list: two lines
_KINDS = {"<int range>": "N", "<float range>": "X", "<str>": "NAME", "<path>": "PATH"}
"""What stands for a value whose option names none."""

# Typer carries a copy of click that is not to be imported: `Any` stands for its classes.


class HelpCommand(TyperCommand):
    """A verb whose help begins with examples, and lists options in groups."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Returns what is left of ``args``. Words too many may be a text without its quotes."""
        try:
            return list(super().parse_args(ctx, args))
        except Exception as error:  # of click, by its message
            takes_text = any(isinstance(parameter, TyperArgument) for parameter in self.params)
            if takes_text and _EXTRA in (message := getattr(error, "message", "")):
                error.message = f"{message}. Put a text of several words in quotes"  # type: ignore[attr-defined]
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the page of the verb."""
        _write_head(self, ctx, formatter)
        _write_rows(formatter, "Arguments", list(_arguments(self, ctx)))
        for title, rows in _panels(self, ctx).items():
            _write_rows(formatter, title, rows)


class HelpGroup(TyperGroup):
    """A verb of several verbs, or the program; its help begins with examples."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Writes the page of the group."""
        _write_head(self, ctx, formatter)
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [
            (name, command.get_short_help_str(_SUMMARY_LENGTH))
            for name, command in commands
            if command
        ]
        _write_rows(formatter, "Commands", rows)
        for title, rows in _panels(self, ctx).items():
            _write_rows(formatter, title, rows)
        if self.epilog:
            formatter.write_paragraph()
            formatter.write_text(self.epilog)


def _write_head(command: TyperCommand | TyperGroup, ctx: Any, formatter: Any) -> None:
    """Writes usage, what the command does, its examples, and what else there is to say."""
    formatter.width = min(formatter.width, _WIDTH)
    command.format_usage(ctx, formatter)
    said, _, examples = inspect.cleandoc(command.help or "").partition(_EXAMPLES)
    summary, *more = [" ".join(part.split()) for part in said.strip().split("\n\n")]
    _write_paragraph(formatter, summary)
    if examples:
        with formatter.section(_EXAMPLES.rstrip(":")):
            for example in filter(None, map(str.strip, examples.split("\n\n"))):
                formatter.write(_shell_lines(" ".join(example.split())))
    for paragraph in more:
        _write_paragraph(formatter, paragraph)


def _shell_lines(command: str) -> str:
    """Returns a command in lines that a shell reads as one."""
    lines = textwrap.wrap(
        command, _WIDTH - 6, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return "  " + " \\\n  ".join(lines) + "\n"


def _write_paragraph(formatter: Any, text: str) -> None:
    formatter.write_paragraph()
    formatter.write_text(text)


def _write_rows(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows, col_max=_NAMES_WIDTH)


def _arguments(command: TyperCommand | TyperGroup, ctx: Any) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(ctx):
        if isinstance(parameter, TyperArgument):
            help_text = getattr(parameter, "help", None) or ""
            yield parameter.metavar or str(parameter.name), help_text


def _with_kind(names: str) -> str:
    """Returns an option's names with a plain word for its value."""
    for kind, word in _KINDS.items():
        names = names.replace(kind, word)
    return names


def _panels(command: TyperCommand | TyperGroup, ctx: Any) -> dict[str, list[tuple[str, str]]]:
    """Returns the rows of options by the title of their group, common ones first, labs last."""
    panels: dict[str, list[tuple[str, str]]] = {_COMMON: []}
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and not isinstance(parameter, TyperArgument):
            title = getattr(parameter, "rich_help_panel", None) or _COMMON
            panels.setdefault(title, []).append((_with_kind(record[0]), record[1]))
    return dict(sorted(panels.items(), key=lambda panel: panel[0].startswith(_LAST)))
