"""Runtimes that `edgedec bench` measures, edgedec itself among them, each in a process of its own.

worker.py runs in that process, perhaps under another Python that lacks edgedec, so it and the
adapters import nothing of each other; client.py talks to it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Runtime:
    """adapter: file beside this one. packages: what to install for it."""

    name: str
    adapter: str
    packages: tuple[str, ...]


EDGEDEC = Runtime("edgedec", "edgedec_adapter.py", ("edgedec",))
PEERS = {
    peer.name: peer
    for peer in (
        Runtime("llama.cpp", "ggml_adapter.py", ("llama-cpp-python",)),
        Runtime("ik_llama.cpp", "ggml_adapter.py", ("ik-llama-cpp-python",)),
        Runtime("onnxruntime-genai", "genai_adapter.py", ("onnxruntime-genai",)),
        Runtime("openvino", "openvino_adapter.py", ("openvino-genai",)),
    )
}
