"""`edgedec desktop`: a window to write in, with suggestions from a model on this machine."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.console.extras import needs_extra
from edgedec.apps.options import common as options
from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command
from edgedec.models.manifest import MANIFEST_NAME, read_manifest

_LIBRARY = re.compile(r"(lib[^\s:]+): cannot open shared object file")
"""What the system's loader says of a library that it does not find."""


def desktop(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[BUNDLE] [FILES]...",
            help="Bundle or model to use from now on, and files to open.",
        ),
    ] = None,
    *,
    threads: options.Threads = None,
    context: options.Context = None,
    max_cpu: options.MaxCpu = None,
    debug: options.Debug = False,
) -> None:
    """Open a window to write in, with suggestions at the cursor.

    Tab takes a suggestion, Ctrl+Right takes one word, Esc dismisses it, Alt+] shows the next one.
    The window has settings for the model and everything else, and remembers them.

    Examples:

      edgedec desktop

      edgedec desktop code.edgedec

      edgedec desktop code.edgedec main.py notes.md --threads 2 --max-cpu 10%
    """
    with needs_extra("desktop", _what_is_missing):
        from edgedec.apps.desktop.display import DisplayCheck

        check = DisplayCheck()
        from edgedec.apps.desktop.program import run_editor
        from edgedec.apps.desktop.settings import EditorSettings, SettingsFile
        from edgedec.apps.typing.typing_memory import share_of
    check.end()
    bundle, files = _split_arguments(paths or [])
    settings, kept_in, remark = EditorSettings(), SettingsFile(), ""
    try:
        settings = kept_in.read()
        if bundle:
            settings = replace(settings, bundle=bundle)
            kept_in.write(settings)
    except ConfigError as error:
        remark = str(error)
    settings = replace(
        settings,
        bundle=bundle or settings.bundle,
        threads=threads or settings.threads,
        context=context or settings.context,
    )
    if max_cpu is not None:
        typing = replace(settings.typing, max_idle_cpu=share_of(max_cpu))
        settings = replace(settings, typing=typing)
    raise typer.Exit(run_editor(settings, kept_in, files, remark))


def _split_arguments(paths: list[str]) -> tuple[str, list[Path]]:
    """Returns the bundle among the arguments, if the first is one, and the files.

    Raises:
        BundleError: The first one is called like a bundle and is none, so that it never replaces
            the one that works.
    """
    if not paths:
        return "", []
    first = Path(paths[0])
    is_bundle = first.suffix == ".edgedec" or (first / MANIFEST_NAME).is_file()
    is_name = not first.exists() and first.suffix == "" and _is_model(paths[0])
    if is_bundle:
        read_manifest(first)
    if is_bundle or is_name:
        return (str(first.absolute()) if first.exists() else paths[0]), list(map(Path, paths[1:]))
    return "", list(map(Path, paths))


def _is_model(name: str) -> bool:
    from edgedec.apps.model_names import open_library

    library = open_library()
    return library.bundle(name).is_dir() or library.source(name) is not None


def _what_is_missing(error: ImportError) -> str:
    """Returns what an import lacks, and what installs it: a library of the system, or the extra."""
    if library := _LIBRARY.match(str(error)):
        from edgedec.apps.desktop.display import libraries_remedy

        return libraries_remedy([library[1]])
    name = (error.name or "").partition(".")[0]
    package = "PySide6" if name in ("", "shiboken6") else name
    return f"{package}: {install_command('desktop')}"
