"""`edgedec serve`: models over HTTP, for the clients that people have already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.apps.console.event_loop import run_until_signal
from edgedec.apps.console.terminal import note
from edgedec.apps.options import common as options
from edgedec.models.errors import ConfigError
from edgedec.models.installation import install_command

if TYPE_CHECKING:
    from edgedec.apps.serve.settings import ServerSettings
    from edgedec.apps.serve.shelf import Shelf
    from edgedec.runtime.engine.engine import Engine

_MB = 10**6

_END_S = 10
"""How long after a signal the process ends at the latest, even if a model never answers."""


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]BUNDLE...",
            help="Bundles, or names that `edgedec models list` shows; all exported ones for none.",
        ),
    ] = None,
    *,
    host: Annotated[
        str,
        typer.Option(metavar="ADDRESS", help="Address to listen on (default: this machine only)."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on. 0 takes any free port.")
    ] = 8080,
    api_key: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY", help="Require this API key. Repeatable."),
    ] = None,
    share_prefixes: Annotated[
        bool,
        typer.Option(
            "--share-prefixes",
            help="Let different API keys share computed prompt beginnings. Faster, but how soon an "
            "answer comes then tells what others asked.",
        ),
    ] = False,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Allow requests without a key from other machines.")
    ] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name to accept as well. Repeatable."),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Web origin that may send requests. Repeatable."),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option(metavar="MB", min=1, help="Maximum memory of all loaded models."),
    ] = None,
    keep_alive: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS", min=0, help="Unload a model that was unused for this long."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Maximum tokens per answer.")
    ] = 8192,
    max_open: Annotated[
        int, typer.Option(metavar="N", min=1, help="Maximum requests at once. Others are refused.")
    ] = 64,
    threads: options.Threads = None,
    context: options.Context = None,
    prefix_disk: options.PrefixDisk = options.PREFIX_DISK_MB,
    sessions: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Save conversations in FOLDER when the server ends, so that the next one "
            "continues them (default: the user's cache folder).",
        ),
    ] = None,
    debug: options.Debug = False,
) -> None:
    """Serve models over HTTP to other programs.

    Works with clients of OpenAI, Anthropic, Ollama and llama-server, and has a page to try it in a
    browser. A model is loaded on its first request. Only this machine can connect, unless you allow
    others.

    Examples:

      edgedec serve smollm2.edgedec

      edgedec serve qwen2.5-coder:1.5b=coder.edgedec smollm2.edgedec --memory 4000

      edgedec serve smollm2.edgedec --host 0.0.0.0 --api-key "$KEY"
    """
    with _needs_serve_extra():
        import uvicorn  # noqa: F401

        from edgedec.apps.serve.offers import find_offers
        from edgedec.apps.serve.settings import ServerSettings
        from edgedec.apps.serve.shelf import Shelf
    from edgedec.runtime.opening.load import load
    from edgedec.runtime.opening.options import EngineOptions
    from edgedec.runtime.sequences.prefix_files import private_folder

    settings = ServerSettings(
        host=host,
        port=port,
        api_keys=tuple(api_key or ()),
        is_prefix_shared=share_prefixes,
        is_open=no_auth,
        hosts=tuple(allow_host or ()),
        origins=tuple(cors or ()),
        max_new_tokens=max_new_tokens,
        max_open=max_open,
    )
    if sessions is not None:
        if not prefix_disk:
            raise ConfigError("--prefix-disk 0 saves nothing: leave out --sessions, or allow more")
        private_folder(sessions)
    loading = EngineOptions(
        threads=threads, context=context, prefix_disk_mb=prefix_disk, prefix_folder=sessions
    )

    def open_bundle(bundle: Path) -> Engine:
        return load(bundle, loading)

    offers = find_offers(models or [])
    shelf = Shelf(offers, open_bundle, None if memory is None else memory * _MB, keep_alive)
    run_until_signal(_serve(shelf, settings), _END_S)


async def _serve(shelf: Shelf, settings: ServerSettings) -> None:
    from edgedec.apps.serve import listening, web
    from edgedec.apps.serve.service import Service

    sock = listening.bind(settings)
    service = Service(shelf, settings)
    address = sock.getsockname()
    where = f"[{address[0]}]" if ":" in address[0] else address[0]
    note(f"serving {', '.join(o.name for o in shelf.offers)} on http://{where}:{address[1]}")
    try:
        await listening.serve(web.make_web(service), sock, settings, service.requests.end)
    finally:
        await service.close()


@contextmanager
def _needs_serve_extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("edgedec"):
            raise
        raise ConfigError(f"serve needs {error.name}: {install_command('serve')}") from error
