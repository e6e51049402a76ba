"""Graphs compiled for a Qualcomm NPU, ahead of time.

For the device all graphs go into one binary, whose weights they share. Qualcomm's library for x86
makes such a binary and cannot load it, so that for x86 each graph has a binary of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgedec.export.to_onnx.make import set_entries
from edgedec.export.to_onnx.messages import load_model, save_model
from edgedec.kernels.qnn_provider import new_session, says
from edgedec.models.errors import UnsupportedModelError
from edgedec.models.static_passes import CONTEXT_BINARIES, SCALE_KEYS, StaticPass
from edgedec.targets.qnn.socs import Soc

_BINARY_KEY = "ep_cache_context"


def compile_graphs(
    graphs: Mapping[StaticPass, Path], soc: Soc, folder: Path, is_shared: bool
) -> None:
    """Writes into ``folder`` a graph of one node for each of ``graphs``, and the binaries.

    is_shared: whether all are in one binary.

    Raises:
        UnsupportedModelError: Qualcomm's compiler refuses a graph, or compiles for another device.
    """
    last, sessions = [*graphs][-1], []
    for static, graph in graphs.items():
        entries = {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": str(folder / f"{static.name}.onnx"),
        }
        if is_shared:
            entries["ep.share_ep_contexts"] = "1"
        if is_shared and static == last:
            entries["ep.stop_share_ep_contexts"] = "1"
        try:
            session = new_session(
                graph, soc.number, soc.arch, entries, {"enable_htp_prepare_only": "1"}
            )
        except Exception as error:  # its exceptions share no base of their own
            reason = " ".join(str(error).split())
            raise UnsupportedModelError(
                f"Qualcomm's compiler refuses the graph for {static.n_rows} rows on {soc.name}: "
                f"{reason}"
            ) from None
        if is_shared:
            sessions.append(session)  # what they share goes with the last of them
    del sessions
    _name_binaries(graphs, folder, is_shared)
    _check_soc(folder, soc)


def _name_binaries(graphs: Mapping[StaticPass, Path], folder: Path, is_shared: bool) -> None:
    """Gives binaries the names in `CONTEXT_BINARIES`, and graphs what they state of logits."""
    for static, graph in graphs.items():
        path = folder / f"{static.name}.onnx"
        wrapper = load_model(path)
        (node,) = wrapper.graph.node
        (attribute,) = (a for a in node.attribute if a.name == _BINARY_KEY)
        made = folder / attribute.s.decode()
        binary = folder / (CONTEXT_BINARIES[0] if is_shared else f"{static.name}.bin")
        if made.exists():
            made.rename(binary)
        attribute.s = binary.name.encode()
        properties = load_model(graph).metadata_props
        scales = {p.key: p.value for p in properties if p.key in SCALE_KEYS}
        set_entries(wrapper.metadata_props, scales)
        save_model(wrapper, path)


def _check_soc(folder: Path, soc: Soc) -> None:
    """Raises an UnsupportedModelError unless every binary says that it is for ``soc``."""
    for binary in (folder / name for name in CONTEXT_BINARIES):
        if binary.exists() and not says(binary, soc.mark):
            raise UnsupportedModelError(
                f"Qualcomm's compiler did not compile for {soc.name}: {binary.name} does not say "
                f"{soc.mark.decode()}"
            )
