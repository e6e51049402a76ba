"""Who may ask: keys, hosts and origins, refused at the start if no request can ever match them."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from edgedec.models.errors import ConfigError

KEY_VARIABLE = "EDGEDEC_API_KEY"
"""The environment variable that may hold a key: other programs' users cannot list it."""

_MAX_FILE_BYTES = 64 << 10
_ORIGIN = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?:[a-z0-9._~-]+|\[[0-9a-f:.]+\])(?::(?P<port>[1-9]\d{0,4}))?"
)
_HOST = re.compile(r"[a-z0-9._-]+|[0-9a-f:.]+")
_USUAL_PORTS = {"http": "80", "https": "443"}


def collected_keys(keys: Sequence[str], files: Sequence[Path]) -> tuple[str, ...]:
    """Returns the keys that were given, those in ``files``, and that of `KEY_VARIABLE`.

    Raises:
        ConfigError: A file cannot be read, or holds no key.
    """
    variable = os.environ.get(KEY_VARIABLE)
    named = [] if variable is None else [(KEY_VARIABLE, variable)]
    named += [("--api-key", key) for key in keys]
    named += [(str(path), key) for path in files for key in _keys_in(path)]
    for source, key in named:
        check_key(source, key)
    return tuple(key for _, key in named)


def _keys_in(path: Path) -> list[str]:
    """Returns the keys of a file, one a line."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        lines = data.decode("utf-8-sig").splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read --api-key-file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"--api-key-file {path} is not text, expected one key per line") from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(
            f"--api-key-file {path} has more than {_MAX_FILE_BYTES} bytes, expected one key a line"
        )
    if keys := [line.strip() for line in lines if line.strip()]:
        return keys
    raise ConfigError(f"--api-key-file {path} holds no key, expected one key per line")


def check_key(source: str, key: str) -> None:
    """Raises a ConfigError if no request can come with ``key``. source: where it is from."""
    if not key:
        raise ConfigError(f"{source} is empty, expected a key: is its variable set?")
    if not all("!" <= character <= "~" for character in key):
        raise ConfigError(
            f"a key of {source} has spaces or characters beyond ASCII, which headers cannot carry: "
            "choose another key"
        )


def checked_host(name: str) -> str:
    """Returns a name that a Host header may have, in small letters.

    Raises:
        ConfigError: No Host header can have it.
    """
    if _HOST.fullmatch(name.lower()):
        return name.lower()
    raise ConfigError(
        f"--allow-host is {name!r}, expected a name without scheme, port and stars, such as "
        "models.example"
    )


def check_origin(origin: str) -> None:
    """Raises a ConfigError if no browser can send ``origin``."""
    if origin == "null":
        return
    match = _ORIGIN.fullmatch(origin)
    small = origin.lower().rstrip("/")
    if match is None:
        is_near = _ORIGIN.fullmatch(small) is not None
        hint = small if is_near else "https://notes.example or http://localhost:3000"
        raise ConfigError(
            f"--cors is {origin!r}, which no browser sends; expected the origin of a page, such as "
            f"{hint}"
        )
    port = match["port"]
    if port is None:
        return
    if int(port) > 65535 or _USUAL_PORTS.get(match["scheme"]) == port:
        expected = origin.removesuffix(f":{port}")
        raise ConfigError(
            f"--cors is {origin!r}, but no browser sends port {port} there; expected {expected}"
        )
