"""The `edgedec` program: picks a verb, and turns whatever goes wrong into an exit code.

Exit codes: 0 success, 1 failure (one line on standard error), 2 usage, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Annotated, NoReturn

import typer

from edgedec.apps.terminal import print_error, silence_stdout
from edgedec.models.errors import ConfigError, EdgedecError

VERBS = {
    "export": "export_bundle:export",
    "run": "generate:run",
    "chat": "chat:chat",
    "suggest": "suggest:suggest",
    "store": "store:store",
    "bench": "bench:bench",
    "tune": "tune:tune",
    "eval": "evaluate:evaluate",
    "inspect": "inspect_bundle:inspect",
    "doctor": "doctor:doctor",
}
"""Verb -> its file in this folder, and there its function, or its own verbs."""

_VERBS_AT_ONCE = ("run", "chat")
"""Verbs whose user waits for a first token."""


def _make_app(verbs: Iterable[str]) -> typer.Typer:
    """Returns the program with ``verbs`` alone: each verb imported delays the others."""
    app = typer.Typer(
        name="edgedec",
        help="Run language models on this machine.",
        epilog="Begin with: edgedec export smollm2-135m-instruct -o smollm2.edgedec",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for verb in verbs:
        file, _, function = VERBS[verb].partition(":")
        found = getattr(import_module(f"edgedec.apps.{file}"), function)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=verb)
        else:
            app.command(verb)(found)
    app.callback()(_options)
    return app


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from edgedec import __version__

        sys.stdout.write(f"edgedec {__version__}\n")
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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the program and exits. ``arguments`` default to those of the process."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    is_verb_given = bool(given) and given[0] in VERBS
    if is_verb_given and given[0] in _VERBS_AT_ONCE:
        _start_soon()
    try:
        app = _make_app(given[:1] if is_verb_given else VERBS)
        app(args=given, prog_name="edgedec")
    except EdgedecError as error:
        _fail(error, given)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        silence_stdout()
        sys.exit(1)
    except MemoryError as error:
        _fail(EdgedecError(f"out of memory ({error}): use a smaller --context"), given)
    except Exception as error:
        _fail(
            EdgedecError(f"unexpected {type(error).__name__}: {error} (--debug shows more)"), given
        )
    sys.exit(0)


def _start_soon() -> None:
    """Leaves out what delays short runs. To be called before NumPy is imported."""
    # OpenBLAS would start a thread for every processor, each at full speed for a while: NumPy
    # multiplies no matrices here.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # At its end a process gives all memory back at once. Without this, Python would first look for
    # what could go, which takes a tenth of the time.
    atexit.register(gc.freeze)


def _fail(error: EdgedecError, arguments: list[str]) -> NoReturn:
    if "--debug" in arguments:
        traceback.print_exc()
    print_error(error)
    sys.exit(1)


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

        from edgedec.apps.consoles import err

        handler = RichHandler(console=err, show_path=False)
        handler.setFormatter(self.formatter)
        handler.emit(record)
