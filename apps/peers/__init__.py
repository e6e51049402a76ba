"""Runtimes that `edgedec bench` measures, edgedec itself among them, each in a process of its own.

worker.py runs in that process, perhaps under another Python that lacks edgedec, so it and the
adapters import nothing of each other; client.py talks to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edgedec.models.errors import ConfigError

PLAIN = "plain"
_MODE = re.compile(r"(?P<runtime>.+?)(\+(?P<kind>[a-z]+)(?P<n>[1-9]\d?)?)?")


@dataclass(frozen=True)
class Runtime:
    """adapter: file beside this one. packages: what to install for it.

    modes: how it can generate: ``plain``, ``lookup`` (drafts copied from the text before),
        ``draft`` (drafts of a second model).
    keeps_prompts: it can keep the KV cache of a prompt for the next request.
    """

    name: str
    adapter: str
    packages: tuple[str, ...]
    modes: tuple[str, ...] = (PLAIN,)
    keeps_prompts: bool = False


@dataclass(frozen=True)
class Mode:
    """One way to generate with a peer. n_drafted: tokens drafted at a time; None: its default."""

    runtime: Runtime
    kind: str = PLAIN
    n_drafted: int | None = None

    @property
    def name(self) -> str:
        """As users write it: ``llama.cpp``, ``llama.cpp+draft``, ``llama.cpp+draft8``."""
        n_drafted = "" if self.n_drafted is None else str(self.n_drafted)
        return self.runtime.name + ("" if self.kind == PLAIN else f"+{self.kind}{n_drafted}")


EDGEDEC = Runtime("edgedec", "edgedec_adapter.py", ())
_ALL = (PLAIN, "lookup", "draft")
PEERS = {
    peer.name: peer
    for peer in (
        Runtime("llama.cpp", "ggml_adapter.py", ("llama-cpp-python",), _ALL, True),
        Runtime("ik_llama.cpp", "ggml_adapter.py", ("ik-llama-cpp-python",), _ALL, True),
        Runtime("onnxruntime-genai", "genai_adapter.py", ("onnxruntime-genai",), _ALL[:2]),
        Runtime("openvino", "openvino_adapter.py", ("openvino-genai",), _ALL),
    )
}


def find_mode(text: str) -> Mode:
    """Returns the peer and mode that users call ``text``; ConfigError if there is none."""
    match = _MODE.fullmatch(text)
    runtime = PEERS.get(match["runtime"]) if match else None
    if match is None or runtime is None:
        raise ConfigError(f"--against got {text!r}, expected some of {', '.join(PEERS)}")
    kind, n_drafted = match["kind"] or PLAIN, match["n"]
    if kind not in runtime.modes or (kind == PLAIN and n_drafted):
        known = ", ".join(Mode(runtime, kind).name for kind in runtime.modes)
        raise ConfigError(f"--against got {text!r}, expected of this peer: {known}")
    return Mode(runtime, kind, int(n_drafted) if n_drafted else None)
