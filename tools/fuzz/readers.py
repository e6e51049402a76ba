"""What reads strangers' files, each as a function of bytes, for `fuzz_readers.py` and its test.

A function returns None, whatever it is given. It raises where a reader fails in another way than
with one line for the user, or takes what it must refuse. Inputs are files as they lie on a disk,
but for checksums, which a blind search never guesses: where an input asks for it they are mended.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edgedec.export.checkpoints.gguf import GgufCheckpoint
from edgedec.export.checkpoints.safetensors_dir import HuggingFaceCheckpoint
from edgedec.models.errors import EdgedecError
from edgedec.models.families import matrices
from edgedec.models.manifest import read_manifest
from edgedec.models.onnx_locations import locations
from edgedec.runtime.drafting.ngrams.ngram_file import describe
from edgedec.runtime.drafting.ngrams.ngram_store import NgramStore
from edgedec.runtime.opening.bundle_parts import default_method, defaults
from edgedec.runtime.sequences.session_file import MAGIC, PAGE, Expected, read_states
from edgedec.runtime.text.chat_template import ChatTemplate
from edgedec.runtime.text.tokenizer import Tokenizer

SEPARATOR = b"\n\0\n"
"""Between the files of an input that holds several."""

STORE_OF = "ab" * 32
"""SHA-256 of the tokenizer that the stores are of."""

SESSION_OF = Expected(
    "aim", 64, 100, 400, {"keys": ("<f2", (1, 2, 2)), "values": ("|i1", (1, 2, 2))}
)

_MAX_CHARACTERS = 1200
_SHM = Path("/dev/shm")
_folder = tempfile.TemporaryDirectory(dir=_SHM if _SHM.is_dir() else None)
_ROOT = Path(_folder.name)


def read_gguf(content: bytes) -> None:
    """Reads a GGUF file as export does."""
    _read_checkpoint(lambda: GgufCheckpoint(_written("fuzzed.gguf", content)))


def read_safetensors(content: bytes) -> None:
    """Reads a folder: config.json, generation_config.json and model.safetensors."""
    names = ("config.json", "generation_config.json", "model.safetensors")
    parts = content.split(SEPARATOR, len(names) - 1)
    for name, part in zip(names, [*parts, b"", b""], strict=False):
        _written(f"checkpoint/{name}", part)
    _written("checkpoint/tokenizer.json", _TOKENIZER.encode())
    _read_checkpoint(lambda: HuggingFaceCheckpoint(_ROOT / "checkpoint"))


def read_bundle(content: bytes) -> None:
    """Reads manifest.json, of a bundle whose other files are whole, and generation_config.json."""
    manifest, _, settings = content.partition(SEPARATOR)
    folder = _ROOT / "bundle"
    _written("bundle/manifest.json", manifest)
    for name, part in BUNDLE_FILES.items():
        if not (folder / name).exists():
            _written(f"bundle/{name}", part)
    _written("bundle/generation_config.json", settings)

    def read() -> None:
        manifest = read_manifest(folder)
        assert manifest.target.kind == "target"
        assert all((folder / name).resolve().is_relative_to(folder) for name in manifest.files)
        default_method(manifest)
        defaults(folder, manifest)

    _refused_in_one_line(read)


def read_graph(content: bytes) -> None:
    """Reads the locations of a graph's external data."""
    path = _written("model.onnx", content)
    _refused_in_one_line(lambda: locations(path))


def read_texts(content: bytes) -> None:
    """Reads a tokenizer.json and a chat template, and uses both."""
    tokenizer, _, template = content.partition(SEPARATOR)
    path = _written("tokenizer.json", tokenizer)

    def read_tokenizer() -> None:
        codec = Tokenizer.load(path)
        codec.decode(codec.encode("Hello, wörld 12\n"))

    def render() -> None:
        source = template.decode("utf-8", "replace")
        ChatTemplate(source).render([{"role": "user", "content": "Hello"}])

    _refused_in_one_line(read_tokenizer)
    _refused_in_one_line(render)


def read_store(content: bytes) -> None:
    """Reads an n-gram store and adds to it. Byte 0: 1 mends the header's checksum, 2 the others."""
    flags, file = content[:1], bytearray(content[1:])
    if flags and flags[0] & 1 and len(file) >= 64:
        struct.pack_into("<I", file, 12, zlib.crc32(file[:12] + file[24:64]))
    if flags and flags[0] & 2 and len(file) >= 64:
        _mend_blocks(file)
    path = _written("fuzzed.ngrams", bytes(file))

    def read() -> None:
        facts = describe(path)
        assert facts.n_tokens >= 0 <= facts.n_texts
        store = NgramStore.open(path, STORE_OF)
        store.query([5, 6], 4)
        store.add([5, 6, 7, 8])
        assert NgramStore.open(path, STORE_OF).query([5, 6, 7], 1).following[0] == [8]

    _refused_in_one_line(read)


def _mend_blocks(file: bytearray) -> None:
    (n_tokens,) = struct.unpack_from("<I", file, 16)
    n_whole = min(n_tokens // 1023, (len(file) - 64) // 4096)
    for block in range(n_whole):
        start = 64 + 4096 * block
        struct.pack_into("<I", file, start + 4092, zlib.crc32(file[start : start + 4092]))
    start = 64 + 4096 * n_whole
    struct.pack_into("<I", file, 20, zlib.crc32(file[start : start + 4 * (n_tokens % 1023)]))


def read_session(content: bytes) -> None:
    """Reads a session file, or, of an input without its magic, a header and its rows."""
    if not content.startswith(MAGIC):
        content = _session_of(*content.partition(SEPARATOR)[::2])
    path = _written("fuzzed.session", content)

    def read() -> None:
        states = read_states(path, {"target": SESSION_OF})
        rows = states["target"].state.kv_rows
        assert all(array.shape[2] == len(states["target"].state.tokens) for array in rows.values())

    _refused_in_one_line(read)


def _session_of(header: bytes, rows: bytes) -> bytes:
    """Returns a file with right checksums; a payload_sha256 that is 64 zeros is filled in."""
    padding = -(48 + len(header)) % PAGE
    rows += bytes(-len(rows) % PAGE)
    digest = hashlib.sha256(bytes(padding) + rows).hexdigest().encode()
    header = header.replace(b"0" * 64, digest, 1)
    front = struct.pack("<8sII32s", MAGIC, 1, len(header), hashlib.sha256(header).digest())
    return front + header + bytes(padding) + rows


READERS: dict[str, Callable[[bytes], None]] = {
    "gguf": read_gguf,
    "safetensors": read_safetensors,
    "bundle": read_bundle,
    "graph": read_graph,
    "texts": read_texts,
    "store": read_store,
    "session": read_session,
}

_TOKENIZER = json.dumps(
    {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None,
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]},
    }
)  # fmt: skip

BUNDLE_FILES = {
    "target/model.onnx": b"\x08\x0a\x12\x01x",
    "target/weights.bin": bytes(range(64)),
    "tokenizer.json": _TOKENIZER.encode(),
}
"""Files of the bundles that `read_bundle` reads besides their manifests, with their contents."""


def _written(name: str, content: bytes) -> Path:
    path = _ROOT / name
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_bytes(content)
    return path


def _refused_in_one_line(read: Callable[[], Any]) -> None:
    try:
        read()
    except EdgedecError as error:
        line = str(error)
        if "\n" in line or not 0 < len(line) <= _MAX_CHARACTERS:
            raise AssertionError(f"not one line: {line[:3000]!r}") from error


def _read_checkpoint(open_it: Callable[[], Any]) -> None:
    def read() -> None:
        checkpoint = open_it()
        for part in ("licence", "special", "sampling"):
            getattr(checkpoint, part)
        checkpoint.tokenizer_json()
        checkpoint.chat_template()
        with np.errstate(all="ignore"):
            for name in matrices(checkpoint.config):
                checkpoint.rows(name, 0, 1).dequantize()
            checkpoint.vector("norm.weight")

    _refused_in_one_line(read)
