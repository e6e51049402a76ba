"""Who may import whom, read from the source of every file."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from edgedec.apps.verbs import VERBS

ROOT = Path(__file__).parents[1]

ALLOWED = {
    "system": {"system"},
    "kernels": {"kernels", "system"},
    "models": {"models"},
    "targets": {"targets", "models"},
    "export": {"export", "models", "targets", "kernels", "system"},
    "runtime": {"runtime", "models", "targets", "kernels", "system"},
    "autocomplete": {"autocomplete", "runtime", "models", "system"},
    "training": {"training", "export", "runtime", "models", "targets", "kernels", "system"},
    "labs": {"labs", "training", "export", "runtime", "models", "targets", "kernels", "system"},
    "widgets": {"widgets", "autocomplete", "runtime", "models"},
    "apps": {
        "apps",
        "widgets",
        "autocomplete",
        "training",
        "labs",
        "runtime",
        "export",
        "models",
        "targets",
        "kernels",
        "system",
        "src",
    },
    "src": {"runtime", "export", "models", "src"},
}
"""Folder -> folders it may import. ``src`` is the front door, `edgedec` itself."""

DEVICE_FILES = {"export": ALLOWED["export"], "run": ALLOWED["runtime"]}
"""First word of a file in `targets/NAME/` -> folders it may import; any other file is data."""

DEVICES = {path.parent.name for path in (ROOT / "targets").glob("*/__init__.py")}

THIRD_PARTY = {
    "system": set(),
    "kernels": {"numpy"},
    "models": {"numpy"},
    "targets": set(),
    "runtime": {"numpy", "onnxruntime", "tokenizers", "jinja2", "platformdirs"},
    "autocomplete": set(),
    "widgets": {"PySide6"},
    "src": set(),
    "apps": {"numpy", "onnxruntime", "typer", "rich", "platformdirs", "fastjsonschema"},
}
"""What an installation without extras offers. ``export`` and ``training`` may use theirs, too."""

ROOMS = (
    ("text",),
    ("sequences",),
    ("config",),
    ("sampling", "backends"),
    ("drafting",),
    ("decoding",),
    ("methods",),
    ("engine",),
    ("search",),
    ("opening",),
)
"""Folders of ``runtime``: each may import from itself and from those before it.

Of two side by side neither imports the other. The public surface comes last.
"""

DOOR, BEHIND = "runtime/engine/engine.py", "search"
"""The class that users meet, and the room that its methods import when they are called."""

SHARED_ROOMS = (
    ("console", "user_paths"),
    ("exporter", "kept_texts", "measuring", "model_advice", "peers", "programs"),
    ("model_names", "results"),
    ("typing",),
    ("options",),
    ("evaluation",),
)
"""Folders and files of ``apps`` below the verbs: each may import from itself and those before it.

A verb may import all of them, and no other verb. `cli` and `verbs` find verbs by name.
"""

SEEN_BY_DEVICES = {
    "export": {"kv_panels", "phases", "quantising", "to_onnx", "verifying", "weights_file"},
    "runtime": {"backends", "sequences"},
}
"""Folder -> what files of devices may import of it: that which compiles or runs a graph."""

KNOW_DEVICES = {
    "export": {"compilers", "config", "phases", "pipeline"},
    "runtime": {"backends", "opening"},
}
"""Folder -> what of it may import ``targets``: that which chooses a device, or finds its files."""

OPTIONAL = {
    "runtime/sampling/gbnf.py": {"llguidance"},
    "runtime/sampling/schema_grammar.py": {"llguidance"},
    "targets/coreml/run_coreml.py": {"coremltools"},
    "kernels/tvm_program.py": {"tvm_ffi"},
    "kernels/qnn_provider.py": {"onnxruntime", "onnxruntime_qnn"},
    "targets/openvino/run_openvino.py": {"openvino"},
    "targets/openvino/run_graph.py": {"openvino"},
    "targets/openvino/run_static.py": {"openvino"},
    "targets/openvino/run_places.py": {"openvino"},
    "apps/desktop": {"PySide6"},
    "apps/desktop/code_colours.py": {"PySide6", "pygments"},
    "apps/desktop/spelling": {"PySide6", "spellchecker"},
    "apps/lsp/documents.py": {"lsprotocol"},
    "apps/lsp/inline_edit_types.py": {"attrs", "lsprotocol"},
    "apps/lsp/inline_edits.py": {"lsprotocol"},
    "apps/lsp/server.py": {"cattrs", "lsprotocol", "pygls"},
    "apps/lsp/session.py": {"lsprotocol"},
    "apps/lsp/window.py": {"lsprotocol", "pygls"},
    "apps/serve": {"h11", "prometheus_client", "pydantic", "starlette", "uvicorn"},
    "apps/serve/ray_app.py": {"pydantic", "ray", "starlette"},
    "apps/serve/api": {"pydantic"},
    "apps/type/ibus": {"dbus_fast"},
    "apps/type/x11": {"PIL", "Xlib"},
    "apps/measuring/pictures.py": {"matplotlib"},
    "apps/bench/plot.py": {"matplotlib"},
    "apps/evaluation/harness.py": {"lm_eval"},
    "apps/evaluation/plot.py": {"matplotlib"},
    "apps/evaluation/schema_judge.py": {"jsonschema", "referencing"},
    "apps/compare/plot.py": {"matplotlib"},
    "apps/compare/page.py": {"plotly"},
    "apps/fleet": {"asyncssh", "cryptography", "dask", "distributed"},
    "apps/bench/prompts_plot.py": {"matplotlib"},
    "apps/bench/typing_plot.py": {"matplotlib"},
    "apps/peers/genai_adapter.py": {"onnxruntime_genai"},
    "apps/peers/openvino_adapter.py": {"openvino", "openvino_genai"},
}
"""Files, and folders, that nothing imports until what they need turned out to be there."""

FILES = [(folder, path) for folder in ALLOWED for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def import_names(path: Path) -> tuple[tuple[str, str], ...]:
    """Returns module and name of everything a file imports, at any depth; no name of a module."""
    names: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names += ((node.module or "", alias.name) for alias in node.names)
    return tuple(names)


@cache
def imported(path: Path) -> tuple[str, ...]:
    """Returns the dotted name of every module a file imports, at any depth."""
    # `from edgedec import kernels` imports a folder, or a name of the front door.
    return tuple(
        f"{module}.{name}" if name and module == "edgedec" else module
        for module, name in import_names(path)
    )


def role_of(path: Path) -> str:
    """Returns ``export`` or ``run`` for a file of a device that does one, or else nothing."""
    of_device = path.parent.parent == ROOT / "targets"
    role = path.stem.partition("_")[0]
    return role if of_device and role in DEVICE_FILES else ""


def outsiders(folder: str, path: Path) -> Iterator[str]:
    """Yields what a file imports and its folder must not, with the reason."""
    role = role_of(path)
    allowed = DEVICE_FILES.get(role, ALLOWED[folder])
    if path.name == "__main__.py":  # the program, by the front door
        allowed = allowed | {"apps"}
    folder = {"export": "export", "run": "runtime"}.get(role, folder)
    for name in imported(path):
        top, _, rest = name.partition(".")
        if top == "edgedec":
            part = rest.partition(".")[0]
            if (part if part in ALLOWED else "src") not in allowed:
                yield f"{path.relative_to(ROOT)}: {folder} must not import {name}"
        elif top in ALLOWED:
            yield f"{path.relative_to(ROOT)}: import edgedec.{name}, not {name}"
        elif top not in sys.stdlib_module_names:
            known = THIRD_PARTY.get(folder)
            for place in (path.relative_to(ROOT), path.parent.relative_to(ROOT)):
                known = known and known | OPTIONAL.get(place.as_posix(), set())
            if known is not None and top not in known:
                yield f"{path.relative_to(ROOT)}: {folder} must not need {top}"


def test_imports() -> None:
    found = [line for folder, path in FILES for line in outsiders(folder, path)]
    assert not found, "\n".join(found)


def test_only_type_checkers_need_the_onnx_package() -> None:
    """An installation does without it: 28 MB with what it needs."""
    found = {path.relative_to(ROOT).as_posix() for _, path in FILES if "onnx" in imported(path)}
    assert found == {"export/to_onnx/messages.py"}


def device_imports(folder: str, path: Path) -> Iterator[str]:
    """Yields imports of devices by the core, and by files of devices that do something else."""
    for name in imported(path):
        parts = name.split(".")
        if parts[:2] == ["edgedec", "targets"] and len(parts) > 2 and parts[2] in DEVICES:
            role = parts[3].partition("_")[0] if len(parts) > 3 else ""
            if folder != "targets" or (role in DEVICE_FILES and role != role_of(path)):
                yield f"{path.relative_to(ROOT)}: {name}"


def test_the_core_imports_no_device() -> None:
    """Devices are found by name; only apps may know one."""
    found = [
        line for folder, path in FILES if folder != "apps" for line in device_imports(folder, path)
    ]
    assert not found, "\n".join(found)


def seen_by_device(path: Path) -> Iterator[str]:
    """Yields imports of a device's file that reach into what has no part in its graph."""
    for name in imported(path):
        folder, _, rest = name.removeprefix("edgedec.").partition(".")
        seen = SEEN_BY_DEVICES.get(folder)
        if seen is not None and rest.partition(".")[0] not in seen:
            yield f"{path.relative_to(ROOT)}: {name}"


def knows_devices(folder: str, path: Path) -> Iterator[str]:
    """Yields imports of ``targets`` by a file of ``folder`` that is to know of no device."""
    room = path.relative_to(ROOT / folder).with_suffix("").parts[0]
    for name in imported(path):
        if name.startswith("edgedec.targets") and room not in KNOW_DEVICES[folder]:
            yield f"{path.relative_to(ROOT)}: {name}"


def test_devices_and_the_core_meet_in_few_places() -> None:
    devices = [path for folder, path in FILES if folder == "targets"]
    found = [line for path in devices for line in seen_by_device(path)]
    for folder, path in FILES:
        found += knows_devices(folder, path) if folder in KNOW_DEVICES else []
    assert not found, "\n".join(found)


def test_recipes_name_no_option_of_a_verb() -> None:
    found = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "models").rglob("*.py"))
        if "--target" in path.read_text(encoding="utf-8")
    ]
    assert found == []


def test_every_folder_was_read() -> None:
    assert {folder for folder, _ in FILES} == set(ALLOWED)
    assert len(FILES) > 20


def room_of(path: Path, folder: str = "runtime") -> str | None:
    name = path.relative_to(ROOT / folder).with_suffix("").parts[0]
    return None if name == "__init__" else name


def levels(rooms: tuple[tuple[str, ...], ...]) -> dict[str, int]:
    return {room: level for level, side_by_side in enumerate(rooms) for room in side_by_side}


LEVEL, SHARED_LEVEL = levels(ROOMS), levels(SHARED_ROOMS)


def backward(path: Path, own: str) -> Iterator[str]:
    """Yields the imports of a file of the runtime that lead to its own level or a later one."""
    for name in imported(path):
        if name.startswith("edgedec.runtime."):
            used = name.split(".")[2]
            if used == BEHIND and path == ROOT / DOOR:
                continue
            if used != own and LEVEL.get(used, len(ROOMS)) >= LEVEL[own]:
                yield f"{path.relative_to(ROOT)}: {own} -> {name}"


def test_the_engine_imports_searches_when_they_are_asked_for() -> None:
    top = ast.parse((ROOT / DOOR).read_text(encoding="utf-8")).body
    names = [node.module or "" for node in top if isinstance(node, ast.ImportFrom)]
    assert [name for name in names if f"runtime.{BEHIND}" in name] == []


def test_rooms_of_the_runtime_have_no_cycles() -> None:
    rooms = {path: room_of(path) for folder, path in FILES if folder == "runtime"}
    named = {path: room for path, room in rooms.items() if room}
    assert set(named.values()) - set(LEVEL) == set(), "add a new room to ROOMS where it belongs"
    found = [line for path, room in named.items() for line in backward(path, room)]
    assert not found, "\n".join(found)


def beside_or_above(path: Path) -> Iterator[str]:
    """Yields the imports of a file of apps that lead to a verb, to its own level or a later one."""
    own = room_of(path, "apps")
    for name in imported(path):
        if name.startswith("edgedec.apps."):
            used = name.split(".")[2]
            if used == own or (own == "cli" and used == "verbs"):
                continue
            if SHARED_LEVEL.get(used, len(SHARED_ROOMS)) >= SHARED_LEVEL.get(
                str(own), len(SHARED_ROOMS)
            ):
                yield f"{path.relative_to(ROOT)}: {own} -> {name}"


def test_no_verb_imports_another() -> None:
    apps = [path for folder, path in FILES if folder == "apps"]
    rooms = {room_of(path, "apps") for path in apps} - {None, "cli", "verbs"}
    verbs = {place.partition(":")[0].partition(".")[0] for place in VERBS.values()}
    assert rooms == verbs | set(SHARED_LEVEL), "a room is a verb's, or stands in SHARED_ROOMS"
    found = [line for path in apps for line in beside_or_above(path)]
    assert not found, "\n".join(found)
