"""Graphs of kernels on an emulated GPU: order, early launches, and what is given back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from emulated_cuda import build_driver

from edgedec.kernels import cuda_driver
from edgedec.kernels.device_program import KernelCall, KernelGeometry

pytestmark = pytest.mark.kernel

SOURCE = """
extern "C" __global__ void __launch_bounds__(32) double_kernel(float* __restrict__ y) {
  y[blockIdx.x * 32 + threadIdx.x] *= 2;
}
extern "C" __global__ void __launch_bounds__(32) add_kernel(float* __restrict__ x, float* __restrict__ y) {
  y[blockIdx.x * 32 + threadIdx.x] += x[blockIdx.x * 32 + threadIdx.x];
}
"""  # noqa: E501
BLOCKS = KernelGeometry((2, 1, 1), (32, 1, 1), (0,))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(SOURCE, tmp_path_factory.mktemp("driver"))


@pytest.mark.parametrize("waits", [False, True])
def test_a_graph_runs_its_kernels_in_order(
    library: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", str(library))
    device = cuda_driver.CudaDevice(cuda_driver.find_gpus()[0], b"", waits)
    x, y = (device.allocate(64 * 4) for _ in range(2))
    device.write(x, np.arange(64, dtype=np.float32))
    device.write(y, np.ones(64, np.float32))
    add = KernelCall("add", KernelGeometry(BLOCKS.grid, BLOCKS.block, (1, 0)), (y, x))
    graph = device.prepare([add, KernelCall("double", BLOCKS, (y,)), add])
    device.launch(graph)
    device.launch(graph)
    found = np.empty(64, np.float32)
    device.read(y, found)
    np.testing.assert_array_equal(found, 9 * np.arange(64) + 4)
    driver = device._driver
    assert driver.emulated_early_edges() == (2 if waits else 0)
    assert driver.emulated_allocations() == 3
    device.discard(graph)
    device.close()
    assert driver.emulated_allocations() == 0
