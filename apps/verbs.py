"""The verbs of `edgedec`, and the command line that all of them share."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated

import typer

from edgedec.apps.console.help_pages import HelpCommand, HelpGroup
from edgedec.apps.console.terminal import write_out
from edgedec.models.errors import ConfigError

VERBS = {
    "models": "models:models",
    "export": "export.command:export",
    "run": "run.command:run",
    "chat": "chat.command:chat",
    "suggest": "suggest:suggest",
    "store": "store:store",
    "serve": "serve.command:serve",
    "lsp": "lsp.command:lsp",
    "desktop": "desktop.command:desktop",
    "type": "type.command:type_",
    "bench": "bench.command:bench",
    "compare": "compare.command:compare",
    "fleet": "fleet.command:fleet",
    "tune": "tune.command:tune",
    "train": "train.command:train",
    "eval": "eval.command:evaluate",
    "inspect": "inspect:inspect",
    "kept": "kept.command:kept",
    "doctor": "doctor:doctor",
}
"""Verb -> its file in this folder, and there its function, or its own verbs."""


SUMMARIES = {
    "models": "List models by name, fetch them from the Hugging Face hub, and remove them.",
    "export": "Turn a model file into a bundle that `edgedec run` loads.",
    "run": "Generate text from a prompt.",
    "chat": "Chat with a model.",
    "suggest": "Show the likeliest continuations of a text.",
    "store": "Fill n-gram stores, which `auto` and `store` draft from, and show them.",
    "serve": "Serve models over HTTP to other programs.",
    "lsp": "Serve suggestions to an editor (Language Server Protocol).",
    "desktop": "Open a window to write in, with suggestions at the cursor.",
    "type": "Suggest words in every window, by the input method framework IBus (Linux).",
    "bench": "Measure the speed of prefill (pp), decode (tg) and verify passes.",
    "compare": "Compare results of devices, builds, bundles and runtimes.",
    "fleet": "Measure and evaluate on many devices at once, over ssh or a Dask cluster.",
    "tune": "Find when the target model should take over from the draft model.",
    "train": "Train heads, draft models and KV maps that make a bundle faster.",
    "eval": "Measure how good answers are, and how long they take.",
    "inspect": "Show what a bundle holds. --verify checks every byte.",
    "kept": "List what is kept of your texts on this machine, and remove it.",
    "doctor": "Show this machine, what edgedec will use on it, and what is missing.",
}
"""Verb -> the first sentence of its help, for those who do not want to import the verb."""


def make_app(verbs: Iterable[str]) -> typer.Typer:
    """Returns the program with ``verbs`` alone: each verb imported delays the others."""
    app = _empty_app()
    for verb in verbs:
        file, _, function = VERBS[verb].partition(":")
        command = getattr(import_module(f"edgedec.apps.{file}"), function)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=verb)
        else:
            app.command(verb, cls=HelpCommand)(command)
    return app


def make_overview() -> typer.Typer:
    """Returns the program for ``--help`` and ``--version``, whose verbs have a summary only."""
    app = _empty_app()
    for verb, summary in SUMMARIES.items():
        app.command(verb, help=summary)(_start_logging)
    return app


def _empty_app() -> typer.Typer:
    app = typer.Typer(
        name="edgedec",
        help="Run language models on this machine.",
        epilog='Begin with: edgedec run smollm2-135m-instruct "Why is the sky blue?"',
        no_args_is_help=True,
        cls=HelpGroup,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from edgedec import __version__

        write_out(f"edgedec {__version__}\n")
        raise typer.Exit


def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    _start_logging()


def _start_logging() -> None:
    name = os.environ.get("EDGEDEC_LOG", "warning").upper()
    level = logging.getLevelNamesMapping().get(name)
    if level is None:
        known = ", ".join(level.lower() for level in logging.getLevelNamesMapping())
        raise ConfigError(f"EDGEDEC_LOG is {name.lower()!r}, expected one of {known}")
    logging.basicConfig(level=level, handlers=[_LateHandler()], format="%(message)s")


class _LateHandler(logging.Handler):
    """Rich's handler, imported once there is something to log."""

    def emit(self, record: logging.LogRecord) -> None:
        from rich.logging import RichHandler

        from edgedec.apps.console.consoles import err

        handler = RichHandler(console=err, show_path=False)
        handler.setFormatter(self.formatter)
        handler.emit(record)
