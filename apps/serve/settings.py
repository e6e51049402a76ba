"""Settings that the server starts with."""

from __future__ import annotations

from dataclasses import dataclass

from edgedec.apps.serve.access import check_key, check_origin, checked_host
from edgedec.apps.serve.log_form import LogForm
from edgedec.models.errors import ConfigError

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Where the server listens, whom it answers, and its limits.

    api_keys: one of them must come with each request; none is asked for where there are none.
    is_prefix_shared: requests of different keys share what was computed of equal beginnings.
    is_open: others than this machine may ask without a key.
    hosts: names in the Host header that are answered besides addresses and this machine's own.
    origins: web pages that may ask from a browser.
    max_body_bytes, max_header_bytes: most of a request. max_open: requests at once.
    max_parallel: answers that are written at once; others wait.
    max_new_tokens: most tokens of an answer. max_constraint_bytes: most of what an answer has to
    follow: a schema, those of all tools together, an expression or a grammar.
    header_s, body_s: how long a request may take to come. request_s: how long an answer may take.
    heartbeat_s: how long a stream may be silent before a sign of life is sent.
    log: form of the line that each request leaves on standard error; None for no lines.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    is_prefix_shared: bool = False
    is_open: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_body_bytes: int = 16 << 20
    max_header_bytes: int = 32 << 10
    max_constraint_bytes: int = 256 << 10
    max_open: int = 64
    max_parallel: int = 8
    max_new_tokens: int = 8192
    header_s: float = 10.0
    body_s: float = 30.0
    request_s: float = 3600.0
    heartbeat_s: float = 5.0
    log: LogForm | None = None

    def __post_init__(self) -> None:
        for key in self.api_keys:
            check_key("--api-key", key)
        for origin in self.origins:
            check_origin(origin)
        object.__setattr__(self, "hosts", tuple(map(checked_host, self.hosts)))
        if not self.host.strip():
            raise ConfigError("--host is empty, expected an address such as 127.0.0.1")
        if self.host not in LOOPBACK and not self.api_keys and not self.is_open:
            raise ConfigError(
                f"--host {self.host} lets other machines in: give a key by --api-key-file FILE or "
                "the variable EDGEDEC_API_KEY, or --no-auth to let everybody in"
            )
        if self.api_keys and self.is_open:
            raise ConfigError("an API key and --no-auth are given, expected one of them")
