"""ONNX Runtime's execution provider for Qualcomm's NPUs: a package of its own.

On x86 it comes with a library that compiles for these NPUs and evaluates what it compiled.
"""

from __future__ import annotations

import mmap
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import onnxruntime
import onnxruntime_qnn

from edgedec.system.streams import stdout_on_stderr

_NAME = "QNNExecutionProvider"
_SEVERITY_FATAL = 4
"""What ONNX Runtime may print: errors it raises, too."""

_lock = threading.Lock()


def new_session(
    graph: Path,
    soc_number: int,
    arch: int,
    entries: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
) -> onnxruntime.InferenceSession:
    """Returns a session that runs all of ``graph`` on the NPU, or on what stands in for it.

    soc_number, arch: of the system on a chip, as Qualcomm numbers them.
    entries, options: more of the session's configuration, and of the provider's.

    Raises whatever ONNX Runtime raises; there is no common class.
    """
    session_options = onnxruntime.SessionOptions()
    session_options.log_severity_level = _SEVERITY_FATAL
    for key, value in {"session.disable_cpu_ep_fallback": "1", **(entries or {})}.items():
        session_options.add_session_config_entry(key, value)
    of_provider = {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "soc_model": str(soc_number),
        "htp_arch": str(arch),
        **(options or {}),
    }
    with _lock, stdout_on_stderr():
        session_options.add_provider_for_devices([_device()], of_provider)
        return onnxruntime.InferenceSession(str(graph), session_options)


def says(binary: Path, mark: bytes) -> bool:
    """Says whether ``mark`` occurs in the file ``binary``."""
    with binary.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(mark) >= 0


@cache
def _device() -> onnxruntime.OrtEpDevice:
    """Returns the device, after registering the provider's library, which is done once."""
    onnxruntime.register_execution_provider_library(_NAME, onnxruntime_qnn.get_library_path())
    return next(device for device in onnxruntime.get_ep_devices() if device.ep_name == _NAME)
