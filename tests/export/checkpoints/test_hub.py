"""Pulling models from a hub: a server on this machine that says what the real one says."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from untrained_head import write_untrained_head

from edgedec.export.checkpoints.hub import HubName, choose_files
from edgedec.export.config import ExportConfig
from edgedec.export.heads.shipped_heads import config_digest
from edgedec.export.pipeline import export
from edgedec.models.errors import CheckpointError
from edgedec.models.manifest import read_manifest

pytest.importorskip("huggingface_hub", reason="needs the export extra")

REVISION = "0123456789abcdef0123456789abcdef01234567"
NOBODY = "http://127.0.0.1:9"
"""Where nobody listens."""


@dataclass
class Hub:
    """A model and what goes wrong with it."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    licence: str | None = "apache-2.0"
    status: int = 200
    cut_at: int | None = None
    damaged: str = ""
    revision: str = REVISION
    ranges: list[str] = field(default_factory=list)

    def info(self) -> dict[str, Any]:
        siblings: list[dict[str, Any]] = []
        for name, content in self.files.items():
            sibling = {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            if is_large(name):
                digest = hashlib.sha256(content).hexdigest()
                sibling["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(sibling)
        card = {"license": self.licence} if self.licence else {}
        return {
            "id": "org/tiny",
            "sha": self.revision,
            "siblings": siblings,
            "cardData": card,
            "tags": [],
        }


def is_large(name: str) -> bool:
    return name.endswith((".gguf", ".safetensors", ".bin"))


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(is_body_wanted=False)

    def do_GET(self) -> None:
        self.answer(is_body_wanted=True)

    def answer(self, is_body_wanted: bool) -> None:
        path = self.path.partition("?")[0]
        if self.hub.status != 200 or not path.startswith(("/api/models/org/tiny", "/org/tiny/")):
            self.send_response(self.hub.status if self.hub.status != 200 else 404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith("/api/"):
            self.send(200, json.dumps(self.hub.info()).encode(), {}, is_body_wanted)
        else:
            name = path.split(f"/{self.hub.revision}/")[1]
            self.send_file(name, is_body_wanted)

    def send_file(self, name: str, is_body_wanted: bool) -> None:
        content = self.hub.files[name]
        etag = hashlib.sha256(content).hexdigest() if is_large(name) else git_hash(content)
        headers = {
            "ETag": f'"{etag}"',
            "X-Repo-Commit": self.hub.revision,
            "Accept-Ranges": "bytes",
        }
        if is_large(name):
            headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(content))}
        if name == self.hub.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        status = 200
        if is_body_wanted and (asked := self.headers.get("Range")):
            self.hub.ranges.append(asked)
            start = int(re.findall(r"\d+", asked)[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            content, status = content[start:], 206
        self.send(status, content, headers, is_body_wanted)

    def send(
        self, status: int, content: bytes, headers: dict[str, str], is_body_wanted: bool
    ) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if is_body_wanted:
            cut = None
            if len(content) > 10_000:
                cut, self.hub.cut_at = self.hub.cut_at, None
            self.wfile.write(content[:cut])
            if cut is not None:
                self.close_connection = True


@pytest.fixture
def hub() -> Iterator[Hub]:
    """Returns a hub that is listened for."""
    found = Hub()
    handler = type("BoundHandler", (Handler,), {"hub": found})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    found.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()


@pytest.fixture
def edgedec(hub: Hub, tmp_path: Path) -> Any:
    """Returns a caller of the program with a home of its own."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        own = {
            "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1",
            "XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_TELEMETRY": "1",
        }  # fmt: skip
        return subprocess.run(
            [sys.executable, "-c", "from edgedec.apps.cli import main; main()", *arguments],
            env={**os.environ, **own, **environment},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            check=False,
        )

    return run


def line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("error: ")
    assert "Traceback" not in done.stderr
    return last


@pytest.mark.slow
def test_a_gguf_file_is_pulled_run_and_removed(
    hub: Hub, edgedec: Any, make_gguf: Any, tmp_path: Path
) -> None:
    hub.files = {"tiny.gguf": make_gguf("llama", "Q8_0").read_bytes(), "README.md": b"# tiny"}
    pulled = edgedec("models", "pull", "org/tiny:tiny.gguf", "--json")
    assert pulled.returncode == 0, pulled.stderr
    found = json.loads(pulled.stdout)
    assert (found["licence"], found["revision"]) == ("apache-2.0", REVISION)
    assert found["n_bytes"] == len(hub.files["tiny.gguf"])
    hub.status = 503  # from here on nothing is asked of the hub
    shown = edgedec("models", "show", "org/tiny:tiny.gguf")
    assert "made at first use" in shown.stdout
    first = edgedec("run", "org/tiny:tiny.gguf", "--raw", "hello", "-n", "4")
    assert first.returncode == 0, first.stderr
    assert "exporting org/tiny:tiny.gguf once" in first.stderr
    again = edgedec("run", "org/tiny:tiny.gguf", "--raw", "hello", "-n", "4")
    assert again.stdout == first.stdout
    assert "exporting" not in again.stderr
    assert edgedec("inspect", "org/tiny:tiny.gguf", "--verify").returncode == 0
    listed = json.loads(edgedec("models", "list", "--json").stdout)
    assert "org/tiny:tiny.gguf" in [model["name"] for model in listed["models"]]
    (bundle,) = listed["bundles"]
    assert (bundle["model"], bundle["format"]) == ("tiny", "keep, cpu")
    removed = edgedec("models", "remove", "org/tiny:tiny.gguf", "--json")
    assert json.loads(removed.stdout)["n_freed_bytes"] > found["n_bytes"]
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > 9999
    ]
    assert "there is nothing here of" in line(edgedec("models", "remove", "org/tiny:tiny.gguf"))


FINDS_FIRST = """
import sys
from importlib.machinery import PathFinder


class First(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "edgedec_heads":
            return PathFinder.find_spec(name, [{folder!r}])


sys.meta_path.insert(0, First)
"""
"""Has a folder's heads found before those that are installed in place."""


def make_heads(folder: Path, checkpoint: Path) -> None:
    """Makes a distribution of heads in ``folder`` with a head for ``checkpoint``, untrained."""
    bundle = folder / "bundle"
    export(ExportConfig(str(checkpoint), bundle))
    config = read_manifest(bundle).target.config
    package = folder / "edgedec_heads"
    package.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(FINDS_FIRST.format(folder=str(folder)))
    (package / "__init__.py").touch()
    path = package / "tiny.safetensors"
    write_untrained_head(path, bundle)
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    (package / "heads.toml").write_text(
        f'[tiny]\nfile = "{path.name}"\nsha256 = "{sha256}"\nconfig = "{config_digest(config)}"\n'
    )


@pytest.mark.slow
def test_a_model_that_is_pulled_gets_the_head_that_is_shipped(
    hub: Hub, edgedec: Any, make_gguf: Any, tmp_path: Path
) -> None:
    checkpoint = make_gguf("llama", "Q8_0")
    make_heads(tmp_path / "site", checkpoint)
    with_heads = {"PYTHONPATH": str(tmp_path / "site")}
    hub.files = {"tiny.gguf": checkpoint.read_bytes()}
    pulled = edgedec("models", "pull", "org/tiny:tiny.gguf", **with_heads)
    assert "its bundle gets the draft head tiny of edgedec-heads, if the hash fits" in pulled.stdout
    run = "run", "org/tiny:tiny.gguf", "--raw", "hello", "-n", "8"
    first = edgedec(*run, **with_heads)
    said = "with a draft head of the kind hydra, which decoding uses where that is faster"
    assert said in first.stderr, first.stderr
    drafted = edgedec(*run, "--method", "mtp", **with_heads)
    assert drafted.returncode == 0, drafted.stderr
    edgedec("models", "remove", "org/tiny:tiny.gguf")
    # Without the distribution: the same text, and not a word of heads.
    again = edgedec("models", "pull", "org/tiny:tiny.gguf", "--json")
    assert json.loads(again.stdout)["head"] is None
    plain = edgedec(*run)
    assert "draft head" not in plain.stderr
    assert plain.stdout == first.stdout == drafted.stdout


@pytest.mark.slow
def test_a_newer_revision_takes_the_place_of_the_bundle(
    hub: Hub, edgedec: Any, make_gguf: Any
) -> None:
    run = ("run", "org/tiny:tiny.gguf", "--raw", "hello", "-n", "4")
    texts: list[str] = []
    for revision, family in ((REVISION, "llama"), (REVISION[::-1], "qwen2")):
        hub.revision = revision
        hub.files = {"tiny.gguf": make_gguf(family, "Q8_0").read_bytes()}
        assert edgedec("models", "pull", "org/tiny:tiny.gguf").returncode == 0
        first = edgedec(*run)
        assert "exporting org/tiny:tiny.gguf once" in first.stderr
        texts.append(first.stdout)
    assert texts[0] != texts[1]
    assert edgedec("models", "pull", "org/tiny:tiny.gguf").returncode == 0
    assert "exporting" not in edgedec(*run).stderr


@pytest.mark.slow
def test_without_a_network_what_was_fetched_is_exported(
    hub: Hub, edgedec: Any, make_gguf: Any
) -> None:
    hub.files = {"tiny.gguf": make_gguf("llama", "Q8_0").read_bytes()}
    assert edgedec("export", "org/tiny:tiny.gguf", "-o", "one.edgedec").returncode == 0
    for name, hindrance in (("two", {"HF_HUB_OFFLINE": "1"}), ("three", {"HF_ENDPOINT": NOBODY})):
        done = edgedec("export", "org/tiny:tiny.gguf", "-o", f"{name}.edgedec", **hindrance)
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_download_that_was_cut_off_goes_on(hub: Hub, edgedec: Any) -> None:
    hub.files = {"tiny.gguf": bytes(range(256)) * (24 << 12)}  # more than the package's 10 MiB
    hub.cut_at = 15 << 20
    first = edgedec("models", "pull", "org/tiny:tiny.gguf")
    if first.returncode:  # the package may go on by itself
        assert "cannot download org/tiny:tiny.gguf" in line(first)
        assert edgedec("models", "pull", "org/tiny:tiny.gguf").returncode == 0
    assert hub.ranges
    assert all(int(re.findall(r"\d+", asked)[0]) >= 10 << 20 for asked in hub.ranges)


@pytest.mark.slow
def test_damage_is_found_and_mended_by_pulling_again(
    hub: Hub, edgedec: Any, make_gguf: Any
) -> None:
    hub.files = {"tiny.gguf": make_gguf("llama", "Q8_0").read_bytes()}
    hub.damaged = "tiny.gguf"
    said = line(edgedec("models", "pull", "org/tiny:tiny.gguf"))
    assert "tiny.gguf was damaged on its way" in said
    assert "fetch it again" in said
    hub.damaged = ""
    done = edgedec("models", "pull", "org/tiny:tiny.gguf")
    assert done.returncode == 0, done.stderr
    assert "licence: apache-2.0" in done.stdout


@pytest.mark.slow
def test_what_the_hub_refuses_is_one_line(hub: Hub, edgedec: Any) -> None:
    hub.files = {"pytorch_model.bin": b"\x80\x04" * 9000, "config.json": b"{}"}
    assert "only pickled weights (pytorch_model.bin), which may run code" in line(
        edgedec("models", "pull", "org/tiny")
    )
    assert "there is no org/other at http" in line(edgedec("models", "pull", "org/other"))
    assert "expected a hub id such as org/name" in line(edgedec("models", "pull", "tiny"))
    said = line(edgedec("models", "pull", "org/tiny", HF_ENDPOINT=NOBODY))
    assert "cannot reach http://127.0.0.1:9 to download org/tiny: check the network" in said
    said = line(edgedec("models", "pull", "org/tiny", HF_HUB_OFFLINE="1"))
    assert "cannot reach" in said
    assert "there is no model 'org/tiny'" in line(edgedec("models", "show", "org/tiny"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubName("org/name")),
        ("org/name-1.5b:a/b.gguf", HubName("org/name-1.5b", "a/b.gguf")),
        *((text, None) for text in ("name", "a/b/c", "org/model.gguf", "../x", "org/name:")),
        *((text, None) for text in ("org/name:/etc/x.gguf", "org/name:../x.gguf", "")),
        *((text, None) for text in (r"org/name:C:\x.gguf", r"org/name:..\x.gguf")),
    ],
)
def test_names(text: str, expected: HubName | None) -> None:
    assert HubName.parse(text) == expected


def test_which_files_are_fetched() -> None:
    name = HubName("org/name")
    weights = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    rest = ["config.json", "tokenizer.model", "README.md"]
    others = ["pytorch_model.bin", "onnx/model.safetensors", "run.py", "model.onnx"]
    assert choose_files(name, [*weights, *rest, *others]) == [*weights, *rest]
    parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]
    assert choose_files(HubName("org/name", parts[0]), [*parts, "x.gguf"]) == parts
    with pytest.raises(CheckpointError, match=r"name one, as in org/name:a\.gguf; there are a"):
        choose_files(name, ["b.gguf", "a.gguf"])
    with pytest.raises(CheckpointError, match=r"holds no x\.gguf; its GGUF files are: a\.gguf"):
        choose_files(HubName("org/name", "x.gguf"), ["a.gguf"])
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is not a GGUF file"):
        choose_files(HubName("org/name", "pytorch_model.bin"), ["pytorch_model.bin"])
    with pytest.raises(CheckpointError, match="holds no weights"):
        choose_files(name, ["config.json"])
