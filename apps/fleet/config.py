"""`fleet.toml`: the hosts of a fleet, or the Dask cluster that has them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgedec.models.errors import ConfigError

WORKSPACE = ".edgedec/fleet"
"""Folder on a host, from the user's home."""

_SSH_NAME = re.compile(
    r"(?:(?P<user>[^@\s:]+)@)?(?P<host>\[[^\]\s]+\]|[^@\s:]+)(?::(?P<port>\d+))?"
)
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST_KEYS = {"ssh", "python", "workspace", "environment", "cores"}
_SECRETS = {"password", "passphrase", "passwd"}


@dataclass(frozen=True)
class Host:
    """A device that ssh reaches.

    label: what results call it. host, user, port: as in ``ssh user@host``; None leaves it to the
    user's ssh configuration. python: the program that has edgedec. environment: variables of
    edgedec there. cores: the only processors it may use, if any are named.
    """

    label: str
    host: str
    user: str | None = None
    port: int | None = None
    python: str = f"{WORKSPACE}/venv/bin/python"
    workspace: str = WORKSPACE
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: tuple[int, ...] = ()


@dataclass(frozen=True)
class Cluster:
    """A Dask cluster that runs already. tls: files with the keys ``ca``, ``cert`` and ``key``."""

    address: str
    tls: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Fleet:
    """What `fleet.toml` says: hosts, or a cluster."""

    hosts: tuple[Host, ...] = ()
    cluster: Cluster | None = None


def read_fleet(path: Path) -> Fleet:
    """Returns the fleet that a file describes.

    Raises:
        ConfigError: The file cannot be read, or says something that makes no sense.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from None
    return parse_fleet(document, path.name)


def parse_fleet(document: Mapping[str, Any], source: str) -> Fleet:
    """Returns the fleet in the tables of a TOML file, which messages call ``source``.

    Raises:
        ConfigError: A table or value makes no sense.
    """
    if unknown := set(document) - {"hosts", "scheduler", "tls"}:
        raise ConfigError(
            f"{source} has {_listed(unknown)}, expected tables [hosts.NAME], or scheduler"
        )
    hosts, scheduler = document.get("hosts", {}), document.get("scheduler")
    if not isinstance(hosts, dict):
        raise ConfigError(f"{source}: hosts is {hosts!r}, expected tables [hosts.NAME]")
    if bool(hosts) == (scheduler is not None):
        raise ConfigError(f"{source} needs either tables [hosts.NAME], or scheduler = ADDRESS")
    if scheduler is not None:
        return Fleet(cluster=_read_cluster(document, source))
    if "tls" in document:
        raise ConfigError(f"{source}: tls belongs to scheduler; ssh hosts need no keys here")
    return Fleet(tuple(_read_host(label, fields, source) for label, fields in hosts.items()))


def _read_cluster(document: Mapping[str, Any], source: str) -> Cluster:
    address, tls = document["scheduler"], document.get("tls", {})
    if not isinstance(address, str) or not re.match(r"(tcp|tls)://[^\s/]+:\d+$", address):
        raise ConfigError(
            f"{source}: scheduler is {address!r}, expected an address such as tcp://10.0.0.5:8786"
        )
    is_whole = isinstance(tls, dict) and set(tls) in (set(), {"ca", "cert", "key"})
    if not is_whole or not all(isinstance(value, str) for value in tls.values()):
        raise ConfigError(f"{source}: [tls] needs the paths ca, cert and key, and nothing else")
    if address.startswith("tls:") != bool(tls):
        raise ConfigError(f"{source}: addresses with tls:// need [tls], others have none")
    return Cluster(address, tls)


def _read_host(label: str, fields: Any, source: str) -> Host:
    place = f"{source}: [hosts.{label}]"
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f"{place}: the name needs 1 to 100 letters, digits, spaces or any of . _ + -"
        )
    if not isinstance(fields, dict):
        raise ConfigError(f"{place} is {fields!r}, expected a table")
    if secrets := set(fields) & _SECRETS:
        raise ConfigError(
            f"{place} has {_listed(secrets)}: use an ssh agent or a key, not secrets in a file"
        )
    if unknown := set(fields) - _HOST_KEYS:
        raise ConfigError(f"{place} has {_listed(unknown)}, expected {_listed(_HOST_KEYS)}")
    user, host, port = _parse_ssh(fields.get("ssh", label), place)
    environment = fields.get("environment", {})
    if not isinstance(environment, dict) or not all(
        _VARIABLE.fullmatch(name) and isinstance(value, str) for name, value in environment.items()
    ):
        raise ConfigError(f"{place}: environment is {environment!r}, expected texts by name")
    workspace = _path(fields.get("workspace", WORKSPACE), place, "workspace")
    return Host(
        label,
        host,
        user,
        port,
        python=_path(fields.get("python", f"{workspace}/venv/bin/python"), place, "python"),
        workspace=workspace,
        environment=environment,
        cores=_read_cores(fields.get("cores"), place),
    )


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _parse_ssh(text: Any, place: str) -> tuple[str | None, str, int | None]:
    match = _SSH_NAME.fullmatch(text) if isinstance(text, str) else None
    if match is None or (match["port"] and not 0 < int(match["port"]) < 65536):
        raise ConfigError(f"{place}: ssh is {text!r}, expected a name as in `ssh pi@pi5.local`")
    port = match["port"]
    return match["user"], match["host"].strip("[]"), None if port is None else int(port)


def _path(text: Any, place: str, key: str) -> str:
    if not isinstance(text, str) or not text or any(ord(character) < 32 for character in text):
        raise ConfigError(f"{place}: {key} is {text!r}, expected a path on the host")
    return text.removeprefix("~/")


def _read_cores(value: Any, place: str) -> tuple[int, ...]:
    """Returns the processors that ``0-3,6`` names."""
    if value is None:
        return ()
    parts = re.findall(r"(\d{1,4})(?:-(\d{1,4}))?", value) if isinstance(value, str) else []
    cores = sorted({n for low, high in parts for n in range(int(low), int(high or low) + 1)})
    if not cores or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", value):
        raise ConfigError(f"{place}: cores is {value!r}, expected processors such as 0-3,6")
    return tuple(cores)
