"""`edgedec type`: suggestions in every window, by an input method."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from edgedec.apps.console.event_loop import run_until_signal
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.kept_texts.remarks import remember_typing
from edgedec.apps.model_names import named_bundle
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.user_paths import user_path
from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What happens to the user's session instead of a start."""

    install: Annotated[
        bool,
        typer.Option("--install", help="Start with every session from now on, with these options."),
    ] = False
    uninstall: Annotated[
        bool, typer.Option("--uninstall", help="Remove all that --install put in.")
    ] = False
    status: Annotated[
        bool, typer.Option("--status", help="Show what is installed and where the settings are.")
    ] = False

    def done(self, arguments: list[str]) -> list[str] | None:
        """Does what was asked for; returns lines about it, or None if suggesting was."""
        from edgedec.apps.type import install
        from edgedec.apps.type.settings import SettingsFile

        if self.install:
            return install.install(arguments)
        if self.uninstall:
            return install.uninstall()
        if self.status:
            return [*install.status(), f"settings: {SettingsFile().path}"]
        return None


@takes_groups
def type_(
    bundle: Annotated[
        Path | None,
        typer.Argument(metavar="BUNDLE", help=options.BUNDLE_HELP, callback=named_bundle),
    ] = None,
    *,
    session: SessionOptions,
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

    Without BUNDLE, qwen2.5-coder-0.5b-instruct suggests if its bundle was made by name, and
    smollm2-135m-instruct if not.

    Examples:

      edgedec type

      edgedec type smollm2.edgedec --learn ~/.local/state/edgedec/learned

      edgedec type smollm2.edgedec --install

      edgedec type --uninstall
    """
    from edgedec import __version__
    from edgedec.apps.type.default_model import default_model

    needs_bundle = not (session.uninstall or session.status)
    if bundle is None and needs_bundle:
        bundle = named_bundle(Path(default_model()))
    arguments = [] if bundle is None else [str(bundle.absolute())]
    arguments += ["--threads", str(threads)] * (threads is not None) + ["--panel"] * panel
    arguments += ["--learn", str(user_path(learn).absolute())] if learn else []
    if (lines := session.done(arguments)) is not None:
        write_out("".join(f"{line}\n" for line in lines))
        return
    assert bundle is not None
    with _needs_type_extra():
        from edgedec.apps.type.ibus.guard import guard
    for remark in remember_typing(learn, ""):
        if remark:
            note(remark)
    suggesting = {
        "bundle": str(bundle.absolute()), "threads": threads, "learn": learn, "is_in_panel": panel
    }  # fmt: skip
    run_until_signal(guard(suggesting, __version__))


@contextmanager
def _needs_type_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("edgedec"):
            raise
        raise ConfigError(f"type needs {error.name}: {install_command('type')}") from error
