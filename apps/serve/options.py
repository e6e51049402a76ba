"""Options of `edgedec serve`: who may connect, how much is served, how bundles are loaded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgedec.apps.console.option import option
from edgedec.apps.kept_texts.places import remember_prefixes
from edgedec.apps.options import common as options
from edgedec.apps.serve.log_form import LogForm
from edgedec.models.errors import ConfigError

if TYPE_CHECKING:  # imported where they are needed: `edgedec --help` reads this file
    from edgedec.apps.serve.settings import ServerSettings
    from edgedec.runtime.opening.options import EngineOptions

_MB = 10**6


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Where the server listens, who may use it, and what it tells of them."""

    host: Annotated[
        str, option("ADDRESS", "Address to listen on (default: this machine only).")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port to listen on. 0 takes any free port.")
    ] = 8080
    api_key: Annotated[
        list[str] | None,
        option(
            "KEY",
            "Require this API key. Repeatable. Other users of this machine can see it in the "
            "list of programs: prefer the variable EDGEDEC_API_KEY, or --api-key-file.",
        ),
    ] = None
    api_key_file: Annotated[
        list[Path] | None, option("FILE", "Require a key of FILE, one per line. Repeatable.")
    ] = None
    share_prefixes: Annotated[
        bool,
        typer.Option(
            "--share-prefixes",
            help="Let different API keys share computed prompt beginnings. Faster, but how soon an "
            "answer comes then tells what others asked.",
        ),
    ] = False
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Allow requests without a key from other machines.")
    ] = False
    allow_host: Annotated[
        list[str] | None, option("NAME", "Host name to accept as well. Repeatable.")
    ] = None
    cors: Annotated[
        list[str] | None, option("ORIGIN", "Web origin that may send requests. Repeatable.")
    ] = None
    log: Annotated[
        LogForm | None,
        typer.Option(help="Write a line per request to standard error: text or JSON."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """How much the server does at most."""

    memory: Annotated[int | None, option("MB", "Maximum memory of all loaded models.", min=1)] = (
        None
    )
    keep_alive: Annotated[
        float | None, option("SECONDS", "Unload a model that was unused for this long.", min=0)
    ] = None
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", min=1, help="Maximum tokens per answer.")
    ] = 8192
    max_open: Annotated[
        int, option("N", "Maximum requests at once. Others are refused.", min=1)
    ] = 64

    @property
    def max_bytes(self) -> int | None:
        """Memory of all loaded models; None for no limit."""
        return None if self.memory is None else self.memory * _MB


@dataclass(frozen=True, kw_only=True)
class LoadingOptions:
    """How bundles are loaded, and what is kept of conversations."""

    threads: options.Threads = None
    context: options.Context = None
    prefix_disk: Annotated[
        int | None,
        option(
            "MB",
            "Keep conversations on the disk for the next start, in at most so much space "
            f"(default: none, or {options.PREFIX_DISK_MB} with --sessions).",
            min=0,
        ),
    ] = None
    sessions: Annotated[
        Path | None,
        option(
            "FOLDER",
            "Save conversations in FOLDER when the server ends, so that the next one "
            "continues them (default: the user's cache folder, with --prefix-disk).",
        ),
    ] = None

    def engine_options(self) -> EngineOptions:
        """Returns how each bundle is loaded; makes the folder of ``sessions``.

        Raises:
            ConfigError: The folder cannot be private, or there is no disk space for it.
        """
        from edgedec.runtime.opening.options import EngineOptions
        from edgedec.runtime.sequences.prefix_files import private_folder

        if self.sessions is not None:
            if self.prefix_disk == 0:
                raise ConfigError(
                    "--prefix-disk 0 saves nothing: leave out --sessions, or allow more"
                )
            private_folder(self.sessions)
        return EngineOptions(
            threads=self.threads,
            context=self.context,
            prefix_disk_mb=self._n_kept_mb,
            prefix_folder=self.sessions,
        )

    def kept(self) -> str | None:
        """Returns a remark about what is kept where, at its first use."""
        return remember_prefixes(self._n_kept_mb, self.sessions)

    @property
    def _n_kept_mb(self) -> int:
        usual = 0 if self.sessions is None else options.PREFIX_DISK_MB
        return usual if self.prefix_disk is None else self.prefix_disk


def server_settings(access: AccessOptions, limits: LimitOptions) -> ServerSettings:
    """Returns the settings of the server; a ConfigError if they contradict each other."""
    from edgedec.apps.serve.access import collected_keys
    from edgedec.apps.serve.settings import ServerSettings

    if limits.keep_alive is not None and not math.isfinite(limits.keep_alive):
        raise ConfigError(
            f"--keep-alive is {limits.keep_alive}, expected seconds; leave it out to "
            "keep models loaded"
        )
    return ServerSettings(
        host=access.host,
        port=access.port,
        api_keys=collected_keys(access.api_key or (), access.api_key_file or ()),
        is_prefix_shared=access.share_prefixes,
        is_open=access.no_auth,
        hosts=tuple(access.allow_host or ()),
        origins=tuple(access.cors or ()),
        max_new_tokens=limits.max_new_tokens,
        max_open=limits.max_open,
        log=access.log,
    )
