"""`edgedec serve`: models over HTTP, for the clients that people have already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.apps.console.event_loop import run_until_signal
from edgedec.apps.console.extras import needs_extra
from edgedec.apps.console.terminal import note
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.apps.serve.options import (
    AccessOptions,
    LimitOptions,
    LoadingOptions,
    server_settings,
)

if TYPE_CHECKING:
    from edgedec.apps.serve.model_registry import ModelRegistry
    from edgedec.apps.serve.settings import ServerSettings
    from edgedec.runtime.engine.engine import Engine

_END_S = 10
"""How long after a signal the process ends at the latest, even if a model never answers."""


@takes_groups
def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]BUNDLE...",
            help="Bundles, or names that `edgedec models list` shows; all exported ones for none.",
        ),
    ] = None,
    *,
    access: AccessOptions,
    limits: LimitOptions,
    loading: LoadingOptions,
    debug: options.Debug = False,
) -> None:
    """Serve models over HTTP to other programs.

    Works with clients of OpenAI, Anthropic, Ollama and llama-server, and has a page to try it in a
    browser. A model is loaded on its first request. Only this machine can connect, unless you allow
    others.

    Examples:

      edgedec serve smollm2.edgedec

      edgedec serve qwen2.5-coder:1.5b=coder.edgedec smollm2.edgedec --memory 4000

      edgedec serve smollm2.edgedec --host 0.0.0.0 --api-key-file keys.txt
    """
    with needs_extra("serve"):
        import uvicorn  # noqa: F401

        from edgedec.apps.serve.model_registry import ModelRegistry
        from edgedec.apps.serve.offers import find_offers
    from edgedec.runtime.opening.load import load

    settings = server_settings(access, limits)
    engine_options = loading.engine_options()

    def open_bundle(bundle: Path) -> Engine:
        return load(bundle, engine_options)

    registry = ModelRegistry(
        find_offers(models or []), open_bundle, limits.max_bytes, limits.keep_alive
    )
    run_until_signal(_serve(registry, settings, loading.kept()), _END_S)


async def _serve(registry: ModelRegistry, settings: ServerSettings, remark: str | None) -> None:
    from edgedec.apps.serve import listening, web
    from edgedec.apps.serve.service import Service

    sock = listening.bind(settings)
    service = Service(registry, settings)
    address = sock.getsockname()
    where = f"[{address[0]}]" if ":" in address[0] else address[0]
    note(f"serving {', '.join(o.name for o in registry.offers)} on http://{where}:{address[1]}")
    if remark is not None:
        note(remark)
    try:
        await listening.serve(web.make_web(service), sock, settings, service.requests.end)
    finally:
        await service.close()
