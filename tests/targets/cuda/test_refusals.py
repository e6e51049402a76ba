"""Error messages: no driver, an old driver, a full or old GPU, a refusal of nvcc."""

from __future__ import annotations

import ctypes
import dataclasses
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgedec.kernels import cuda_driver
from edgedec.kernels.device_program import (
    INPUTS,
    KEYS,
    VALUES,
    WEIGHTS,
    WORK,
    Argument,
    DevicePass,
    DeviceProgram,
    KernelGeometry,
    KernelLaunch,
)
from edgedec.models.errors import BundleError, ConfigError
from edgedec.models.graph import (
    INPUT_IDS,
    LOGITS,
    PARENTS,
    WEIGHTS_BESIDE,
    Capabilities,
    GraphContract,
    KVLayout,
)
from edgedec.models.weights import WeightSource
from edgedec.runtime.backends.model_facts import GraphToRun
from edgedec.runtime.backends.trust import trust
from edgedec.targets.cuda import run_cuda, run_report

pytestmark = pytest.mark.robustness

REASONS = {
    2: b"out of memory",
    46: b"CUDA-capable device(s) is/are busy or unavailable",
    100: b"no CUDA-capable device is detected",
    209: b"no kernel image is available for execution on the device",
    222: b"the provided PTX was compiled with an unsupported toolchain.",
    999: b"unknown error",
}
"""What the driver calls its errors."""


@dataclasses.dataclass
class FakeDriver:
    """A driver with one GPU. errors: function -> what it returns. missing: functions it lacks."""

    arch: tuple[int, int] = (8, 9)
    version: int = 12020
    errors: Mapping[str, int] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu") or name in self.missing:
            raise AttributeError(name)
        return lambda *arguments: self.errors.get(name, 0)

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = self.version
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = 1
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:  # noqa: N802
        name.value = b"RTX"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:  # noqa: N802
        value._obj.value = self.arch[attribute - 75]
        return 0

    def cuDeviceTotalMem_v2(self, total: Any, device: Any) -> int:  # noqa: N802
        total._obj.value = 8 << 30
        return 0

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:  # noqa: N802
        context._obj.value = 1
        return self.errors.get("cuDevicePrimaryCtxRetain", 0)

    def cuMemAlloc_v2(self, address: Any, n_bytes: Any) -> int:  # noqa: N802
        address._obj.value = 1 << 20
        return self.errors.get("cuMemAlloc_v2", 0)

    def cuGetErrorString(self, error: int, text: Any) -> int:  # noqa: N802
        text._obj.value = REASONS[error]
        return 0


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a `FakeDriver` with the given fields the one of this machine."""

    def install(**fields: Any) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeDriver(**fields))

    return install


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A program for sm_87, its kernels trusted."""
    kernel = KernelLaunch("k", (Argument(WORK, 0),))
    program = DeviceProgram(
        arch="sm_87",
        waits=False,
        sizes={WEIGHTS: 16, KEYS: 16, VALUES: 16, WORK: 16, INPUTS: 16},
        kernels={"k": KernelGeometry((1, 1, 1), (1, 1, 1), (0,))},
        passes=(DevicePass(1, 1, (kernel,), {LOGITS: 0}),),
        keep=kernel,
    )
    (tmp_path / WEIGHTS_BESIDE).write_bytes(bytes(16))
    (tmp_path / run_cuda.KERNELS_NAME).write_bytes(b"kernels")
    trust([tmp_path / run_cuda.KERNELS_NAME])
    (tmp_path / "program.json").write_text(program.to_json())
    return tmp_path / "program.json"


CONTRACT = GraphContract(
    compiler="cuda", backend="cuda", triple="any", providers=(), inputs=(INPUT_IDS, PARENTS),
    outputs=(LOGITS,), kv=KVLayout("states", "float16", row_nbytes=4), can=Capabilities(trees=True),
)  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "message"),
    [
        (
            {"arch": (8, 6)},
            "is for NVIDIA GPUs of sm_87 or newer; RTX is sm_86: run it where there is one, or "
            "export the model again with --arch sm_86",
        ),
        (
            {"errors": {"cuInit": 100}},
            "is for NVIDIA GPUs of sm_87 or newer; the driver finds no GPU: run it where there is "
            "one, or export the model again with --target cpu",
        ),
        (
            {"errors": {"cuInit": 999}},
            "is for NVIDIA GPUs of sm_87 or newer; CUDA cannot start the driver: unknown error",
        ),
        (
            {"missing": ("cuGraphAddKernelNode_v2",), "version": 11040},
            "NVIDIA's driver here is too old: it supports CUDA 11.4, which has no "
            "cuGraphAddKernelNode_v2",
        ),
        (
            {"errors": {"cuModuleLoadData": 222}},
            "does not run on RTX (CUDA cannot load the kernels: the provided PTX was compiled with "
            "an unsupported toolchain.; the driver supports CUDA 12.2): update NVIDIA's driver, or "
            "export the model again with --arch sm_89 and the nvcc of CUDA 12.2 or older",
        ),
        (
            {"errors": {"cuDevicePrimaryCtxRetain": 46}},
            "RTX does not start (CUDA cannot start the GPU: CUDA-capable device(s) is/are busy "
            "or unavailable): see whether `nvidia-smi` finds it busy or broken",
        ),
        *(
            (
                {"errors": {function: 2}},
                f"does not fit RTX, which has 8192 MB (CUDA cannot {what}: out of memory): end "
                "other programs on it, or export a smaller model or --context",
            )
            for function, what in (
                ("cuDevicePrimaryCtxRetain", "start the GPU"),
                ("cuModuleLoadData", "load the kernels"),
                ("cuMemAlloc_v2", "allocate 16 bytes"),
                ("cuMemcpyHtoD_v2", "copy to the GPU"),
            )
        ),
    ],
)
def test_a_bundle_that_does_not_start_says_why(
    graph: Path,
    make_source: Callable[[], WeightSource],
    install: Any,
    driver: dict[str, Any],
    message: str,
) -> None:
    install(**driver)
    with pytest.raises(BundleError) as found:
        run_cuda.open_model(GraphToRun(graph, make_source().config, CONTRACT, threads=1))
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_kernels_that_wait_need_a_newer_driver_than_others(install: Any) -> None:
    install(missing=("cuGraphAddDependencies_v2",))
    (gpu,) = cuda_driver.find_gpus()
    cuda_driver.CudaDevice(gpu, b"kernels").close()
    with pytest.raises(cuda_driver.CudaError, match=r"too old: it supports CUDA 12\.2, which"):
        cuda_driver.CudaDevice(gpu, b"kernels", waits=True)


def test_doctor_shows_gpu_and_driver_or_which_is_missing(
    install: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    found = "RTX (sm_89, 8.6 GB); the driver supports CUDA 12.2"
    assert run_report.line(run_report.report()) == found
    install(errors={"cuInit": 100})
    assert run_report.line(run_report.report()) == "none: the driver finds no GPU"
    monkeypatch.undo()
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    assert run_report.line(run_report.report()) == (
        "none: there is no NVIDIA driver here (libcuda-that-is-not-there.so.1 is missing)"
    )


@pytest.mark.parametrize(
    ("of_gpu", "arch"), [((8, 0), "sm_80"), ((8, 9), "sm_89"), ((12, 0), "sm_90")]
)
def test_a_bundle_is_compiled_for_the_gpu_here_or_an_older_one(
    install: Any, of_gpu: tuple[int, int], arch: str
) -> None:
    pytest.importorskip("tvm", reason="needs the extra tvm")
    from edgedec.targets.cuda.export_build import local_arch

    install(arch=of_gpu)
    assert local_arch() == arch


def test_a_gpu_that_is_too_old_to_export_for_is_named(install: Any) -> None:
    pytest.importorskip("tvm", reason="needs the extra tvm")
    from edgedec.targets.cuda.export_build import local_arch

    install(arch=(7, 5))
    with pytest.raises(ConfigError, match=r"^RTX is sm_75, and bundles are for .* sm_80 or newer"):
        local_arch()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("nvcc fatal   : Unsupported gpu architecture 'compute_90'", "nvcc fatal   : Unsupported"),
        ("x.cu: in f\nx.cu(3): error: no\n1 error detected", r"x.cu\(3\): error: no"),
        ("sh: 1: cicc: not found\n\n", "sh: 1: cicc: not found"),
        ("", "no reason given"),
    ],
)
def test_what_nvcc_refuses_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, reason: str
) -> None:
    pytest.importorskip("tvm", reason="needs the extra tvm")
    from edgedec.targets.cuda import export_build
    from edgedec.targets.cuda.export_cuda_source import CudaSource

    failed = subprocess.CompletedProcess([], 1, "", output)
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: failed)
    monkeypatch.setattr(export_build, "find_nvcc", lambda: Path("nvcc"))
    with pytest.raises(ConfigError, match=f"^nvcc cannot compile for sm_90: {reason}"):
        export_build.build_fatbin(CudaSource("", {}, True), "sm_90", tmp_path / "k")
