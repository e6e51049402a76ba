"""`edgedec lsp`: suggestions while typing for editors that speak the Language Server Protocol."""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgedec.apps.console.event_loop import run_until_signal
from edgedec.apps.console.extras import needs_extra
from edgedec.apps.console.option import option
from edgedec.apps.console.terminal import note, write_out
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.models.errors import ConfigError
from edgedec.system.streams import claim_stdout

if TYPE_CHECKING:
    from edgedec.apps.lsp.server import EdgedecServer

_EDITORS = Path(__file__).parents[2] / "editors"
"""Plug-ins for editors, in a clone and in a wheel."""


@dataclass(frozen=True, kw_only=True)
class SuggestingOptions:
    """Settings of suggestions, which editors can change."""

    threads: options.Threads = None
    context: options.Context = None
    prefix_disk: options.PrefixDisk = 0
    max_new_tokens: Annotated[
        int | None,
        typer.Option("--max-new-tokens", "-n", min=1, help="Maximum tokens per suggestion."),
    ] = None
    min_probability: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Offer only suggestions at least this likely."),
    ] = None
    max_cpu: options.MaxCpu = None
    learn: Annotated[
        str, option("FOLDER", "Private folder for what is learned from your writing.")
    ] = ""
    session: Annotated[
        str,
        option("FOLDER", "Private folder that caches prompts, so that the next start is faster."),
    ] = ""
    adapt: Annotated[
        str,
        option(
            "FILE",
            "Keep what you write in this private file, and improve the draft head with it "
            "while you pause.",
        ),
    ] = ""

    def settings(self, bundle: str) -> dict[str, Any]:
        """Returns the settings by their names in `ServerSettings`."""
        from edgedec.apps.typing.typing_memory import share_of

        values = {field.name: getattr(self, field.name) for field in fields(self)}
        max_cpu = values.pop("max_cpu")
        max_idle_cpu = None if max_cpu is None else share_of(max_cpu)
        return {"bundle": bundle, "max_idle_cpu": max_idle_cpu, **values}


@takes_groups
def lsp(
    bundle: Annotated[
        str,
        typer.Argument(
            metavar="BUNDLE",
            help="A bundle, a GGUF file or a model's name. Editors can set it, too.",
        ),
    ] = "",
    *,
    suggesting: SuggestingOptions,
    tcp: Annotated[
        int | None,
        option(
            "PORT",
            "Wait for one editor on this local port instead of standard input (0: any free port).",
            min=0,
            max=65535,
        ),
    ] = None,
    neovim: Annotated[
        bool, typer.Option("--neovim", help="Print the folder of the Neovim plug-in, and end.")
    ] = False,
    debug: options.Debug = False,
) -> None:
    """Serve suggestions to an editor (Language Server Protocol).

    Your editor starts this program and talks to it on standard input and output. It offers inline
    completion, and ordinary completion in editors without that. It ends with its editor.

    Examples:

      edgedec lsp code.edgedec

      edgedec lsp code.edgedec --threads 2 --min-probability 0.3

      edgedec lsp code.edgedec --max-cpu 10% --learn ~/.local/state/edgedec/learned

      edgedec lsp code.edgedec --tcp 7777

      edgedec lsp --neovim
    """
    if neovim:
        write_out(f"{_EDITORS / 'neovim'}\n")
        return
    from edgedec import __version__

    with needs_extra("lsp"):
        from edgedec.apps.lsp.server import EdgedecServer
        from edgedec.apps.lsp.settings import ServerSettings
    settings = ServerSettings().changed_by(suggesting.settings(bundle))
    if logging.getLogger().level >= logging.WARNING:
        # It logs tracebacks of errors that editors get anyway, and warns of what is usual.
        logging.getLogger("pygls").setLevel(logging.CRITICAL)
    server = EdgedecServer(settings, __version__)
    code = run_until_signal(_serve_pipes(server) if tcp is None else _serve_tcp(server, tcp))
    raise typer.Exit(code)


async def _serve_pipes(server: EdgedecServer) -> int:
    from edgedec.apps.lsp.transport import DescriptorReader, DescriptorWriter

    out = claim_stdout()
    reader = DescriptorReader(0)
    writer = DescriptorWriter(out, on_gone=reader.end)
    return await server.serve(reader, writer)


async def _serve_tcp(server: EdgedecServer, port: int) -> int:
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
    connected = loop.create_future()

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if connected.done():
            writer.close()
        else:
            connected.set_result((reader, writer))

    try:
        listening = await asyncio.start_server(connect, "127.0.0.1", port)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise ConfigError(f"cannot listen on port {port}: {reason}") from None
    note(f"listening on 127.0.0.1:{listening.sockets[0].getsockname()[1]}")
    reader, writer = await connected
    listening.close()
    try:
        return await server.serve(reader, writer)
    finally:
        writer.close()
