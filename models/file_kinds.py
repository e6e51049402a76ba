"""What a file is that somebody took for a model."""

from __future__ import annotations

from pathlib import Path

_N_BYTES = 512
_KINDS = (
    (b"GGUF", "a GGUF file"),
    (b"%PDF", "a PDF document"),
    (b"version https://git-lfs", "a pointer of Git LFS (`git lfs pull` fetches the file itself)"),
    (b"PK\x03\x04", "a ZIP archive, as PyTorch's .bin and .pt files are"),
    (b"\x80\x02", "a Python pickle, as old PyTorch files are"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive"),
    (b"7z\xbc\xaf", "a 7-Zip archive"),
    (b"\x89PNG", "a PNG picture"),
    (b"\xff\xd8\xff", "a JPEG picture"),
    (b"\x89HDF", "an HDF5 file, as Keras writes"),
    (b"tjgg", "a GGJT file, from before GGUF"),
    (b"lmgg", "a GGML file, from before GGUF"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
    (b"edngrams", "an n-gram store"),
    (b"edgedkv\n", "a session file"),
)
"""First bytes -> kind."""


def file_kind(path: Path) -> str:
    """Returns what the file at ``path`` seems to be, with an article; ``a file`` if unknown."""
    try:
        with path.open("rb") as file:
            return kind_of_bytes(file.read(_N_BYTES)) or "a file"
    except OSError:
        return "a file"


def kind_of_bytes(start: bytes) -> str:
    """Returns what a file that begins with ``start`` seems to be; nothing if unknown."""
    if not start:
        return "an empty file"
    for magic, kind in _KINDS:
        if start.startswith(magic):
            return kind
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype html", b"<html")):
        return "a web page (HTML), which a failed download leaves"
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") < 1 << 30:
        return "a safetensors file (name its folder, which has the config.json)"
    if not start.strip(b"\0"):
        return "a file of zeros, which an interrupted download leaves"
    try:
        start.decode("utf-8", "strict")
    except UnicodeDecodeError as error:
        if error.start < len(start) - 3:
            return ""
    return "" if b"\0" in start else "a text file"
