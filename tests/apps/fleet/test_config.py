"""What `fleet.toml` may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.fleet.config import Cluster, Host, parse_fleet, read_fleet
from edgedec.models.errors import ConfigError


def test_hosts_are_read() -> None:
    fleet = parse_fleet(
        {
            "hosts": {
                "pi5": {"ssh": "pi@pi5.local"},
                "orin": {"cores": "0-3,6", "environment": {"EDGEDEC_ISA": "neondot"}},
                "v6": {"ssh": "root@[fe80::1]:2222", "workspace": "~/measuring"},
            }
        },
        "f",
    )
    pi, orin, v6 = fleet.hosts
    assert pi == Host("pi5", "pi5.local", "pi")
    assert (orin.host, orin.cores) == ("orin", (0, 1, 2, 3, 6))
    assert (v6.host, v6.user, v6.port) == ("fe80::1", "root", 2222)
    assert v6.python == "measuring/venv/bin/python"


def test_a_cluster_is_read() -> None:
    fleet = parse_fleet({"scheduler": "tcp://10.0.0.5:8786"}, "f")
    assert fleet.cluster == Cluster("tcp://10.0.0.5:8786")


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({}, "either tables"),
        ({"hosts": {"a": {}}, "scheduler": "tcp://a:1"}, "either tables"),
        ({"hosts": []}, "expected tables"),
        ({"host": {"a": {}}}, "f has host"),
        ({"hosts": {"a": 3}}, "expected a table"),
        ({"hosts": {"a": {"password": "x"}}}, "secrets"),
        ({"hosts": {"a": {"passphrase": "x"}}}, "secrets"),
        ({"hosts": {"a": {"user": "x"}}}, "has user, expected"),
        ({"hosts": {"a/../b": {}}}, "the name needs"),
        ({"hosts": {"": {}}}, "the name needs"),
        ({"hosts": {"a": {"ssh": "-oProxyCommand=x y"}}}, "ssh is"),
        ({"hosts": {"a": {"ssh": "a:99999"}}}, "ssh is"),
        ({"hosts": {"a": {"ssh": 3}}}, "ssh is"),
        ({"hosts": {"a": {"python": "a\nb"}}}, "python is"),
        ({"hosts": {"a": {"workspace": ""}}}, "workspace is"),
        ({"hosts": {"a": {"cores": "0-"}}}, "cores is"),
        ({"hosts": {"a": {"cores": "all"}}}, "cores is"),
        ({"hosts": {"a": {"cores": 3}}}, "cores is"),
        ({"hosts": {"a": {"cores": "3-1"}}}, "cores is"),
        ({"hosts": {"a": {"environment": {"A": 1}}}}, "environment is"),
        ({"hosts": {"a": {"environment": {"A=B": "1"}}}}, "environment is"),
        ({"hosts": {"a": {}}, "tls": {}}, "tls belongs to scheduler"),
        ({"scheduler": "10.0.0.5"}, "expected an address"),
        ({"scheduler": "tls://a:1"}, "need"),
        ({"scheduler": "tcp://a:1", "tls": {"ca": "x"}}, "ca, cert and key"),
    ],
)
def test_what_makes_no_sense_is_refused(document: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_fleet(document, "f")


@pytest.mark.robustness
@pytest.mark.parametrize("content", [b"hosts = [", b"\xff\xfe", None])
def test_files_that_are_none(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "fleet.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"fleet\.toml"):
        read_fleet(path)
