"""`edgedec type`: suggestions in every window, by an input method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from edgedec.apps.console.event_loop import run_until_signal
from edgedec.apps.console.terminal import note
from edgedec.apps.kept.remarks import remember_typing
from edgedec.apps.options import common as options
from edgedec.apps.typing.typing_memory import TypingMemory
from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command


def type_(
    bundle: options.Bundle,
    *,
    threads: options.Threads = None,
    panel: Annotated[
        bool,
        typer.Option(
            "--panel", help="Show suggestions in IBus' panel below the caret, as on Wayland."
        ),
    ] = False,
    learn: Annotated[
        str,
        typer.Option(
            metavar="FOLDER", help="Private folder for what is learned from your writing."
        ),
    ] = "",
    debug: options.Debug = False,
) -> None:
    """Suggest words in every window, by the input method framework IBus (Linux).

    Tab takes a suggestion, Ctrl+Right takes one word, Esc dismisses it, Alt+] shows the next one.
    All other keys go to the application. Nothing is stored without --learn.

    Examples:

      edgedec type smollm2.edgedec

      edgedec type smollm2.edgedec --learn ~/.local/state/edgedec/learned
    """
    from edgedec import __version__

    with _needs_type_extra():
        from edgedec.apps.type.program import suggest_everywhere
        from edgedec.apps.type.settings import SettingsFile
    for remark in remember_typing(learn, ""):
        if remark:
            note(remark)
    main = suggest_everywhere(
        str(bundle.absolute()), threads, TypingMemory(learn), SettingsFile(), panel, __version__
    )
    run_until_signal(main)


@contextmanager
def _needs_type_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("edgedec"):
            raise
        raise ConfigError(f"type needs {error.name}: {install_command('type')}") from error
