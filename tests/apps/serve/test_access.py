"""Keys, hosts and origins that no request could ever match are refused before the server starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edgedec.apps.serve.access import KEY_VARIABLE, collected_keys
from edgedec.apps.serve.settings import ServerSettings
from edgedec.models.errors import ConfigError

pytestmark = pytest.mark.robustness


@pytest.mark.parametrize("key", ["", " ", "a b", " a", "a\n", "ä", "\0", "\x7f", "k\ty"])
def test_keys_that_no_header_can_carry(key: str) -> None:
    for make in (
        lambda: collected_keys([key], []),
        lambda: ServerSettings(api_keys=(key,)),
        lambda: ServerSettings(host="0.0.0.0", api_keys=("right", key)),
    ):
        with pytest.raises(ConfigError, match="--api-key"):
            make()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_an_empty_key_is_refused_by_the_command(
    cli: Any, smollm2_bundle: Path, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("serve", smollm2_bundle, "--host", host, "--port", "0")
    assert "--api-key is empty" in cli(*asked, "--api-key", "").error
    monkeypatch.setenv(KEY_VARIABLE, "")
    assert f"{KEY_VARIABLE} is empty" in cli(*asked).error
    assert f"{KEY_VARIABLE} is empty" in cli(*asked, "--api-key", "right").error
    monkeypatch.setenv(KEY_VARIABLE, "key")
    assert "an API key and --no-auth are given" in cli(*asked, "--no-auth").error


def test_keys_come_from_arguments_files_and_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "red")
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfblue\r\n\r\ngreen\n")
    assert collected_keys(["white"], [path]) == ("red", "white", "blue", "green")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "holds no key"),
        (b"\n \r\n", "holds no key"),
        (b"\xff\xfe", "is not text"),
        (b"a b\n", "has spaces"),
        (b"a\n" * 40_000, "more than"),
        (None, "cannot read"),
    ],
)
def test_files_without_a_key(tmp_path: Path, data: bytes | None, words: str) -> None:
    path = tmp_path / "keys"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(ConfigError, match=words):
        collected_keys([], [path])


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "https://notes.example",
        "http://localhost:3000",
        "http://[::1]:8080",
        "https://a.example:8443",
        "chrome-extension://abcdefghijklmnopabcdefghijklmnop",
        "moz-extension://0a1b2c3d-1111-2222-3333-444455556666",
        "app://obsidian.md",
        "tauri://localhost",
        "http://my_machine:65535",
    ],
)
def test_origins_that_browsers_send(origin: str) -> None:
    assert ServerSettings(origins=(origin,)).origins == (origin,)


@pytest.mark.parametrize(
    ("origin", "hint"),
    [
        ("chrome-extension://*", "https://notes.example"),
        ("*", "https://notes.example"),
        ("", "https://notes.example"),
        ("https://*.example", "https://notes.example"),
        ("https://Notes.Example", "https://notes.example"),
        ("HTTP://localhost:3000", "http://localhost:3000"),
        ("https://a.example/", "https://a.example"),
        ("https://a.example/page", "https://notes.example"),
        ("https://a.example:443", "expected https://a.example"),
        ("http://a.example:80", "expected http://a.example"),
        ("http://a.example:0", "http://localhost:3000"),
        ("http://a.example:99999", "expected http://a.example"),
        ("https://me@a.example", "https://notes.example"),
        ("https://grün.example", "https://notes.example"),
        (" https://a.example", "https://notes.example"),
        ("a.example", "https://notes.example"),
        ("file://", "https://notes.example"),
        ("NULL", "https://notes.example"),
    ],
)
def test_origins_that_no_browser_sends(origin: str, hint: str) -> None:
    with pytest.raises(ConfigError, match="browser sends") as caught:
        ServerSettings(origins=(origin,))
    assert hint in str(caught.value)


@pytest.mark.parametrize(
    "name", ["", "*", "*.example", "http://a.example", "a.example:80", "a b", "ä.example", "a/b"]
)
def test_hosts_that_no_client_sends(name: str) -> None:
    with pytest.raises(ConfigError, match="--allow-host"):
        ServerSettings(hosts=(name,))


def test_hosts_have_no_capitals(make_server: Any) -> None:
    server = make_server(hosts=("Models.Example",))
    assert server.ask("GET", "/v1/models", headers={"Host": "models.example"})[0] == 200
    assert server.ask("GET", "/v1/models", headers={"Host": "MODELS.example:1"})[0] == 200


@pytest.mark.parametrize("value", ["nan", "inf"])
def test_times_that_are_none(cli: Any, smollm2_bundle: Path, value: str) -> None:
    assert "--keep-alive" in cli("serve", smollm2_bundle, "--keep-alive", value).error


def test_an_address_that_is_empty() -> None:
    with pytest.raises(ConfigError, match="--host is empty"):
        ServerSettings(host="")


@pytest.mark.parametrize(
    ("given", "is_let_in"),
    [
        ([("Authorization", "Bearer right")], True),
        ([("authorization", "bearer   right ")], True),
        ([("X-Api-Key", "right")], True),
        ([("Authorization", "Bearer right"), ("x-api-key", "right")], True),
        (
            [("Authorization", "Bearer "), ("x-api-key", "right")],
            True,
        ),  # no key, so not a wrong one
        ([("Authorization", "Bearer wrong"), ("x-api-key", "right")], False),
        ([("Authorization", "Bearer\twrong"), ("x-api-key", "right")], False),
        ([("Authorization", "Bearer right"), ("x-api-key", "wrong")], False),
        ([("Authorization", "Bearer right"), ("Authorization", "Bearer wrong")], False),
        ([("x-api-key", "right"), ("x-api-key", "wrong")], False),
        ([("Authorization", "Basic wrong")], False),
        ([("Authorization", "right")], False),
        ([("Authorization", "Bearer right wrong")], False),
        ([("x-api-key", "")], False),
        ([], False),
    ],
)
def test_every_key_of_a_request_has_to_be_right(
    keyed: Any, given: list[tuple[str, str]], is_let_in: bool
) -> None:
    head = "".join(f"{name}: {value}\r\n" for name, value in given)
    with keyed.connect() as connection:
        connection.sendall(f"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n{head}\r\n".encode())
        assert connection.recv(65536).split()[1] == (b"200" if is_let_in else b"401")


@pytest.fixture
def keyed(make_server: Any) -> Any:
    return make_server(api_keys=("right",))
