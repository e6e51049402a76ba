"""Passes that do not end by themselves are ended from another thread, or by a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import SessionError
from edgedec.runtime.backends import running_passes as running_passes
from edgedec.runtime.backends.ort import PassRunner, open_graph

from ...passes_reported import TELLING_PASSES, wait_for_passes
from ..engine.test_scheduler import TIMEOUT_S, wait_until

pytestmark = pytest.mark.robustness

ENDLESS = onnx.parser.parse_graph(
    """body (int64 i, bool go, int64 x) => (bool going, int64 y)
    { going = Identity(go) y = Add(x, i) }"""
)


def endless_loop(start: str) -> list[onnx.NodeProto]:
    """Returns nodes that begin with the integer ``start`` and never end."""
    return [
        helper.make_node("Constant", [], ["forever"], value_int=2**62),
        helper.make_node("Cast", ["forever"], ["go"], to=TensorProto.BOOL),
        helper.make_node("Loop", ["forever", "go", start], ["looped"], body=ENDLESS),
    ]


@pytest.fixture
def endless(tmp_path: Path) -> Any:
    """A session over a graph that never ends."""
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [])
    y = helper.make_tensor_value_info("looped", TensorProto.INT64, [])
    graph = helper.make_graph(endless_loop("x"), "endless", [x], [y])
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    return open_graph(tmp_path / "m.onnx", 1, ["CPUExecutionProvider"])


@pytest.fixture
def patience() -> Iterator[threading.Timer]:
    """Ends the test's own passes when it would wait for ever."""
    timer = threading.Timer(60, running_passes.end_passes)
    timer.start()
    yield timer
    timer.cancel()


def once_begun(*calls: Callable[[], int]) -> Future[list[int]]:
    """Has another thread make ``calls`` when a pass has begun; returns what they will give."""

    def watch() -> list[int]:
        wait_until(lambda: running_passes._started)
        return [call() for call in calls]

    pool = ThreadPoolExecutor(1)
    found = pool.submit(watch)
    pool.shutdown(wait=False)
    return found


def end_an_old_one() -> int:
    wait_until(lambda: running_passes.end_passes(0.3))
    return 1


def test_a_pass_is_ended_and_the_next_is_not(endless: Any, patience: threading.Timer) -> None:
    runner, inputs = PassRunner(), {"x": np.array(1)}
    ended = once_begun(running_passes.end_passes)
    with pytest.raises(KeyboardInterrupt):
        runner.run(lambda options: endless.run(None, inputs, options))
    assert ended.result(TIMEOUT_S) == [1]
    assert patience.is_alive()
    assert running_passes.end_passes() == 0
    assert runner.run(lambda options: options.terminate) is False
    with pytest.raises(SessionError, match="could not run the model"):
        runner.run(lambda options: endless.run(None, {"z": inputs["x"]}, options))


def test_only_old_passes_are_ended(endless: Any, patience: threading.Timer) -> None:
    ended = once_begun(lambda: running_passes.end_passes(3600), end_an_old_one)
    with pytest.raises(KeyboardInterrupt):
        PassRunner().run(lambda options: endless.run(None, {"x": np.array(1)}, options))
    assert ended.result(TIMEOUT_S) == [0, 1]
    assert patience.is_alive()


@pytest.mark.slow
def test_passes_of_other_threads_go_on(endless: Any, patience: threading.Timer) -> None:
    own = threading.get_ident()
    ended = once_begun(
        lambda: running_passes.end_passes(thread=threading.get_ident()),
        lambda: running_passes.end_passes(thread=own),
    )
    with pytest.raises(KeyboardInterrupt):
        PassRunner().run(lambda options: endless.run(None, {"x": np.array(1)}, options))
    assert ended.result(TIMEOUT_S) == [0, 1]
    assert patience.is_alive()


def endless_bundle(bundle: Path, folder: Path) -> Path:
    """Returns a copy of a bundle whose first pass never ends."""
    made = folder / "endless.edgedec"
    shutil.copytree(bundle, made, copy_function=os.link)
    path = made / "target/model.onnx"
    model = onnx.load(path, load_external_data=False)
    [embed] = [node for node in model.graph.node if "input_ids" in node.input]
    embed.input[list(embed.input).index("input_ids")] = "never"
    waits = [
        helper.make_node("Constant", [], ["zero"], value_int=0),
        *endless_loop("zero"),
        helper.make_node("Add", ["input_ids", "looped"], ["never"]),
    ]
    others = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend([*waits, *others])
    path.unlink()
    onnx.save(model, path)
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["files"]["target/model.onnx"] = {
        "n_bytes": path.stat().st_size, "sha256": file_sha256(path)
    }  # fmt: skip
    (made / "manifest.json").unlink()
    (made / "manifest.json").write_text(json.dumps(manifest))
    return made


@pytest.mark.e2e
@pytest.mark.parametrize(("number", "n_more"), [(signal.SIGINT, 30), (signal.SIGTERM, 0)])
def test_signals_end_an_endless_graph(
    smollm2_bundle: Path, tmp_path: Path, number: signal.Signals, n_more: int
) -> None:
    bundle = endless_bundle(smollm2_bundle, tmp_path)
    process = subprocess.Popen(
        [*TELLING_PASSES, "run", str(bundle), "hello", "-n", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        wait_for_passes(process, 1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1)  # it is endless
        process.send_signal(number)
        for _ in range(n_more):  # one more would do, but two that are pending at once are one
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
                break
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert out == ""
    assert "rror" not in err
