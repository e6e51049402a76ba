"""Pages on adding something name the files that have to change: all of them, and no others."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from edgedec.apps.serve.web import ENDPOINTS
from edgedec.apps.verbs import SUMMARIES, VERBS
from edgedec.models.kv_formats import KV_FORMATS
from edgedec.models.quant import FORMATS

ROOT = Path(__file__).parents[2]


def listed(page: str) -> list[str]:
    """Returns the files that the first list of a page names."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").split("\n## ")[0]
    return re.findall(r"^- `([\w./]+)`", text, flags=re.MULTILINE)


def bases(path: Path) -> set[str]:
    """Returns what classes of a file are made from, by name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            of_class = (b.value if isinstance(b, ast.Subscript) else b for b in node.bases)
            found |= {base.id for base in of_class if isinstance(base, ast.Name)}
    return found


def test_an_ops_step_is_one_file_for_each_emitter() -> None:
    folders = ("models", "export", "targets", "training", "labs", "runtime")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    emitters = {path.relative_to(ROOT).as_posix() for path in files if "Ops" in bases(path)}
    emitters -= {"models/draft_heads.py"}  # the vocabulary of draft heads
    assert set(listed("adding-an-ops-step.md")) == {"models/blocks.py", *emitters}


def test_a_device_is_one_folder() -> None:
    """No code outside its folder names a device, but for the usual two and torch's own names."""
    devices = {path.parent.name for path in (ROOT / "targets").glob("*/target.py")}
    others = devices - {"cpu", "portable"}
    rooms = ("models", "export", "runtime", "training", "labs", "apps", "src")
    naming = set()
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and node.value in others:
                naming.add((path.relative_to(ROOT).as_posix(), node.value))
    of_torch = {("training/loop.py", "cuda"), ("training/torch_ops.py", "cuda")}
    assert naming == {("apps/peers/__init__.py", "openvino"), *of_torch}  # a peer that is measured


def test_a_kv_format_is_four_files() -> None:
    files = listed("adding-a-kv-format.md")
    assert len(files) == 4
    sources = sorted((ROOT / "kernels/src").glob("*"))
    branching = {p.name for p in sources if "kKvInt8" in p.read_text(encoding="utf-8")}
    assert {f"kernels/src/{name}" for name in branching} < set(files)
    assert {name for name, kv_format in KV_FORMATS.items() if kv_format.panels} > {"int8"}


def test_a_storage_format_is_four_files() -> None:
    """Files that name q5_0, which is a format like any other, and the order of both tables."""
    rooms = ("models", "kernels", "export", "targets", "runtime", "training", "apps", "labs")
    sources = [path for room in rooms for path in sorted((ROOT / room).rglob("*"))]
    naming = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if path.suffix in (".py", ".h", ".cc")
        and re.search(r"\bk?_?q5_0\b", path.read_text(encoding="utf-8"), re.IGNORECASE)
    }
    # Readers that unpack other publishers' codes into it.
    readers = ("float_groups", "grouped_matrices", "mlx_matrices", "stored_matrices")
    naming -= {f"export/checkpoints/{name}.py" for name in readers}
    assert naming == set(listed("adding-a-format.md"))
    layout = (ROOT / "kernels/src/layout.h").read_text(encoding="utf-8")
    (numbers,) = re.findall(r"enum FormatIndex \{ ([^}]+) \}", layout)
    names = [name.removeprefix("k").lower() for name in numbers.split(", ")]
    assert names == [re.sub("_(k|nl)", r"\1", name) for name in FORMATS]
    assert [row.index for row in FORMATS.values()] == list(range(len(FORMATS)))
    (levels,) = re.findall(r"kThreeBitLevels\[16\] = \{([^}]+)\}", layout)
    assert tuple(map(int, levels.split(", "))) == 2 * FORMATS["q3_nl"].levels


def test_a_verb_is_its_file_and_two_rows() -> None:
    assert list(VERBS) == list(SUMMARIES)
    assert "apps/verbs.py" in listed("adding-a-verb.md")
    for verb, place in VERBS.items():
        module = place.partition(":")[0].replace(".", "/")
        assert module in (verb, f"{verb}/command")
        assert (ROOT / "apps" / f"{module}.py").is_file()


def test_an_api_is_its_file_and_the_table() -> None:
    """No file besides names an API's module or address: keys, limits and errors read the table."""
    files = listed("adding-an-api.md")
    assert "apps/serve/web.py" in files
    apis = {endpoint.read.__module__ for endpoint in ENDPOINTS}
    names = {api.rpartition(".")[2] for api in apis}
    assert all((ROOT / f"apps/serve/api/{name}.py").is_file() for name in names)
    # Addresses that answer at once, and describe what they know in the words of an API.
    others = {"apps/serve/web.py", "apps/serve/handlers.py"}
    paths = {endpoint.path for endpoint in ENDPOINTS}
    for path in sorted((ROOT / "apps/serve").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        imported = re.findall(
            r"^from edgedec\.apps\.serve\.api import ([^(\n]+|\([^)]+\))", text, re.M
        )
        found = names & set(re.findall(r"\w+", " ".join(imported)))
        assert not found or path.relative_to(ROOT).as_posix() in others, (path, found)
        assert not [one for one in paths if f'"{one}"' in text], path
