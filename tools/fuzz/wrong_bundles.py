"""Bundles with edited graphs, manifests or weights: texts, or errors of one line, and no crash.

    python tools/fuzz/wrong_bundles.py --tries 10000 --seconds 500

They have a model alone, or exits, a draft head, a draft model or KV maps beside it. Hashes are made
right again, as who edits a bundle would. Each is loaded and asked for texts in a process of its
own; where the model is as it was, all are those of plain decoding, whatever became of the rest.
Called again it goes on.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import onnx
from pieces import run_tries
from tiny_kinds import make_kinds

import edgedec
from edgedec.models.bundle_files import file_sha256
from edgedec.models.errors import BundleError, EdgedecError
from edgedec.models.manifest import BundleManifest, fingerprint_of

N_BYTES = 4 << 30
"""Memory that a bundle may ask for; more is an error, as on a small machine."""
N_SECONDS = 60
TEXT, REFUSED, UNEXPECTED = 0, 10, 11
"""How a process ends."""
PROMPT = 10 * "abab cdef "
"""Long enough for maps from one model to another."""
ODD = (0, 1, 2, 3, 7, 16, 64, 127, 128, 2**31 - 1, 2**31, 2**62, -1, -2, -(2**31))
JOINED = "target/mtp.onnx"
"""The model once more, with its light heads inside."""
OTHER_OPERATORS = ("Identity", "Neg", "Shape", "Transpose", "Softmax", "Not", "Squeeze", "NonZero")


def edit_attribute(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Gives an attribute an odd value."""
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    attribute = rng.choice(attributes)
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice(ODD)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = rng.choice((0.0, -1.0, 1e30, float("nan"), float("inf")))
    else:
        attribute.i = rng.choice(
            (attribute.i - 1, attribute.i + 1, rng.choice(ODD))
        )  # which all fit


def edit_node(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Leaves a node out, lets its input through, makes it another, or takes other inputs for it."""
    number = rng.randrange(len(graph.node))
    node = graph.node[number]
    edit = rng.choice(("leave out", "pass on", "other", "inputs", "inputs", "no input"))
    if edit == "leave out":
        del graph.node[number]
    elif edit == "pass on":
        new = onnx.helper.make_node("Identity", node.input[:1], node.output[:1])
        node.CopyFrom(new)
    elif edit == "other":
        node.op_type, node.domain = rng.choice(OTHER_OPERATORS), ""
        del node.attribute[:], node.input[1:], node.output[1:]
    elif edit == "no input":
        node.input[rng.randrange(len(node.input))] = ""
    else:
        names = [value.name for value in (*graph.input, *graph.initializer)]
        names += [name for other in graph.node for name in other.output]
        node.input[rng.randrange(len(node.input))] = rng.choice(names)


def edit_weight(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Changes shape, type or place of a weight."""
    weight = rng.choice(graph.initializer)
    edit = rng.choice(("dims", "type", "place", "place"))
    if edit == "dims":
        weight.dims[rng.randrange(len(weight.dims))] = rng.choice(ODD)
    elif edit == "type":
        weight.data_type = rng.randrange(0, 24)
    elif weight.external_data:
        entry = rng.choice(weight.external_data)
        entry.value = rng.choice(("", "x", "../tokenizer.json", *map(str, ODD)))


def edit_port(graph: onnx.GraphProto, rng: random.Random) -> None:
    """Changes type or sizes of an input or output, its name, or leaves it out."""
    ports = rng.choice((graph.input, graph.output))
    number = rng.randrange(len(ports))
    port, edit = ports[number], rng.choice(("leave out", "name", "type", "size", "size"))
    if edit == "leave out":
        del ports[number]
    elif edit == "name":
        port.name = rng.choice(graph.output).name
    elif edit == "type":
        port.type.tensor_type.elem_type = rng.randrange(1, 17)
    elif sizes := port.type.tensor_type.shape.dim:
        sizes[rng.randrange(len(sizes))].dim_value = rng.choice(ODD)


def parts(fields: Any) -> list[dict[str, Any]]:
    """Returns the tables of ``fields`` and below, which state what can be edited."""
    if not isinstance(fields, dict):
        return []
    below = [part for value in fields.values() for part in parts(value)]
    return [fields, *below] if editable(fields) else below


def editable(part: dict[str, Any]) -> list[str]:
    """Returns the names of numbers, flags and lists."""
    return [name for name, value in part.items() if isinstance(value, bool | int | list)]


def edit_manifest(manifest: dict[str, Any], rng: random.Random) -> None:
    """Gives something that is stated of a model, a head or maps an odd value."""
    tables = [manifest[key] for key in ("models", "head", "auxiliary") if key in manifest]
    part = rng.choice([part for fields in tables for part in parts(fields)])
    name = rng.choice(editable(part))
    value = part[name]
    if isinstance(value, bool):
        part[name] = not value
    elif isinstance(value, list):
        part[name] = rng.choice(([], [0], [1], [rng.choice(ODD)], value[::-1]))
    else:
        part[name] = rng.choice((value - 1, value + 1, 2 * value, rng.choice(ODD)))


def edit_values(path: Path, rng: random.Random) -> None:
    """Overwrites some of the weights, of which many are then no numbers."""
    content = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 100))):
        start = rng.randrange(len(content))
        n = min(rng.choice((2, 64, 4096)), len(content) - start)
        content[start : start + n] = rng.choice((rng.randbytes(n), b"\xff" * n, b"\x00" * n))
    path.write_bytes(content)


def edited(bundle: Path, rng: random.Random) -> bool:
    """Edits a graph of ``bundle``, mostly, and now and then its manifest and its weights.

    Returns:
        Whether the model that writes texts is as it was.
    """
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    before = BundleManifest.from_dict(manifest)
    is_stated_anew = rng.random() < 0.3
    if is_stated_anew:
        edit_manifest(manifest, rng)
    names = list(before.files)
    graph = rng.choice([name for name in names if name.endswith(".onnx")])
    weights = None
    model = onnx.load(bundle / graph, load_external_data=False)
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        edits = (edit_attribute, edit_node, edit_node, edit_weight, edit_port)
        rng.choice(edits)(model.graph, rng)
    (bundle / graph).write_bytes(model.SerializeToString())
    if rng.random() < 0.2:
        weights = rng.choice([name for name in names if name.endswith(".bin")])
        edit_values(bundle / weights, rng)
    for name in names:
        path = bundle / name
        manifest["files"][name] = {"n_bytes": path.stat().st_size, "sha256": file_sha256(path)}
    (bundle / "manifest.json").write_text(with_fingerprints(manifest, before))
    return not is_stated_anew and not {graph, weights} & {*before.target.files, JOINED}


def with_fingerprints(manifest: dict[str, Any], before: BundleManifest) -> str:
    """Returns ``manifest`` as text, in which heads and maps are those of the edited models."""
    text = json.dumps(manifest)
    try:
        after = BundleManifest.from_dict(manifest)
    except BundleError:
        return text
    for name in before.models:
        text = text.replace(fingerprint_of(before, name), fingerprint_of(after, name))
    return text


def used(bundle: Path, kind: str, is_model_whole: bool) -> int:
    """Loads a bundle and asks it for texts; returns how that ended, the worst of all."""
    if "SANITIZED_KERNELS" not in os.environ:  # whose sanitizer maps all addresses that there are
        resource.setrlimit(resource.RLIMIT_AS, (N_BYTES, N_BYTES))
    try:
        with edgedec.load(bundle, edgedec.EngineOptions(threads=1)) as engine:
            plain = engine.generate(PROMPT, requests("plain")[0]).text if is_model_whole else None
            return max(try_request(engine, request, plain) for request in requests(kind))
    except BaseException as error:
        return reported(error)


def requests(kind: str) -> list[edgedec.GenerationConfig]:
    """Returns what a bundle is asked for, such that what it has beside the model is used."""
    prefills = ("exact", "progressive", "predicted")
    maps = [("plain", prefill) for prefill in prefills]
    drafter = "plain" if kind == "plain" else kind
    pairs = maps if kind == "maps" else [(drafter, "exact"), ("auto", "exact")]
    return [
        edgedec.GenerationConfig(max_new_tokens=8, method=method, prefill=prefill, ignore_eos=True)
        for method, prefill in pairs
    ]


def try_request(
    engine: edgedec.Engine, request: edgedec.GenerationConfig, plain: str | None
) -> int:
    """Asks for one text, which has to be ``plain`` unless that is None; returns how that ended."""
    try:
        text = engine.generate(PROMPT, request).text
    except BaseException as error:
        return reported(error)
    if request.prefill == "predicted" or plain in (None, text):
        return TEXT
    print(f"{request.method}, prefill {request.prefill}: {text!r}, expected {plain!r}", flush=True)
    return UNEXPECTED


def reported(error: BaseException) -> int:
    """Prints ``error``; returns whether it is one that a damaged bundle may end with."""
    if isinstance(error, MemoryError):
        return REFUSED
    if isinstance(error, EdgedecError):
        print(error, flush=True)
        return UNEXPECTED if "\n" in str(error) else REFUSED
    traceback.print_exception(error)
    return UNEXPECTED


def try_one(number: int, kinds: dict[str, Path], folder: Path) -> int:
    """Edits a copy of one of the bundles and uses it; returns how the process ended.

    What it printed is in ``folder``/printed.txt.
    """
    kind = list(kinds)[number % len(kinds)]
    bundle = folder / "edited.edgedec"
    shutil.rmtree(bundle, ignore_errors=True)
    shutil.copytree(kinds[kind], bundle)
    printed = os.open(folder / "printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    child = os.fork()
    if child == 0:
        os.dup2(printed, 1)
        os.dup2(printed, 2)
        status = UNEXPECTED
        try:
            is_model_whole = edited(bundle, random.Random(number))
            signal.alarm(N_SECONDS)
            status = used(bundle, kind, is_model_whole)
        finally:
            os._exit(status)
    os.close(printed)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_some(first: int, n: int) -> int:
    """Tries ``n`` bundles; raises SystemExit at one that was not used or refused as it should."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kinds = make_kinds(folder)
        for number in range(first, first + n):
            status = try_one(number, kinds, folder)
            if status not in (TEXT, REFUSED):
                raise SystemExit(f"{number}: {status}\n{(folder / 'printed.txt').read_text()}")
    return n


if __name__ == "__main__":
    sys.exit(run_tries(__doc__, "wrong_bundles", 10000, lambda n_done: check_some(n_done, 40)))
