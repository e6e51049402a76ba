"""Passes that do not end by themselves are ended from another thread, or by a signal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper

from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import SessionError
from edgedec.runtime.backends._ort import PassRunner, open_graph
from edgedec.runtime.sessions import under_way

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
    timer = threading.Timer(60, under_way.end_passes)
    timer.start()
    yield timer
    timer.cancel()


def test_a_pass_is_ended_and_the_next_is_not(endless: Any, patience: threading.Timer) -> None:
    runner, inputs = PassRunner(), {"x": np.array(1)}
    ender = threading.Timer(0.2, under_way.end_passes)
    ender.start()
    with pytest.raises(KeyboardInterrupt):
        runner.run(lambda options: endless.run(None, inputs, options))
    assert patience.is_alive()
    assert under_way.end_passes() == 0
    assert runner.run(lambda options: options.terminate) is False
    with pytest.raises(SessionError, match="could not run the model"):
        runner.run(lambda options: endless.run(None, {"z": inputs["x"]}, options))


def test_only_old_passes_are_ended(endless: Any, patience: threading.Timer) -> None:
    ended = []
    young = threading.Timer(0.1, lambda: ended.append(under_way.end_passes(30)))
    old = threading.Timer(0.6, lambda: ended.append(under_way.end_passes(0.3)))
    young.start()
    old.start()
    with pytest.raises(KeyboardInterrupt):
        PassRunner().run(lambda options: endless.run(None, {"x": np.array(1)}, options))
    assert ended == [0, 1]
    assert patience.is_alive()


def test_passes_of_other_threads_go_on(endless: Any, patience: threading.Timer) -> None:
    ended = []
    own = threading.get_ident()

    def end() -> None:
        ended.append(under_way.end_passes(thread=threading.get_ident()))
        ended.append(under_way.end_passes(thread=own))

    threading.Timer(0.2, end).start()
    with pytest.raises(KeyboardInterrupt):
        PassRunner().run(lambda options: endless.run(None, {"x": np.array(1)}, options))
    assert ended == [0, 1]
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
@pytest.mark.parametrize(("number", "n_signals"), [(signal.SIGINT, 2), (signal.SIGTERM, 1)])
def test_signals_end_an_endless_graph(
    smollm2_bundle: Path, tmp_path: Path, number: signal.Signals, n_signals: int
) -> None:
    bundle = endless_bundle(smollm2_bundle, tmp_path)
    program = [sys.executable, "-c", "from edgedec.apps.cli import main; main()"]
    process = subprocess.Popen(
        [*program, "run", str(bundle), "hello", "-n", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2.5)  # it is endless
        for _ in range(n_signals):
            process.send_signal(number)
            time.sleep(0.5)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert out == ""
    assert "rror" not in err
