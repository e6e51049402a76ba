"""Files import one another in one direction only, inside functions and for types as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from .test_layers import ALLOWED, FILES, ROOT, import_names


def module_of(path: Path) -> str:
    """Returns the dotted name of a file, or of the folder whose ``__init__.py`` it is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "src" else ("edgedec", *parts)
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_of(path): path for _, path in FILES}


def imported(name: str) -> set[str]:
    """Returns the modules of ours that a module imports, at any depth."""
    found = set()
    for module, part in import_names(MODULES[name]):
        full = f"{module}.{part}" if part else module
        while full and full not in MODULES:  # what is imported from a module, not one itself
            full = full.rpartition(".")[0]
        found.add(full)
    return found - {name, ""}


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yields a way round for each module that lies on one, the module first and last."""
    for start in sorted(graph):
        came_from = dict.fromkeys(graph[start], start)
        waiting = list(came_from)
        while waiting and start not in came_from:
            module = waiting.pop(0)
            for after in graph[module] - came_from.keys():
                came_from[after] = module
                waiting.append(after)
        if start in came_from:
            way = [start]
            while len(way) == 1 or way[-1] != start:
                way.append(came_from[way[-1]])
            yield way[::-1]


def test_files_import_in_one_direction() -> None:
    assert {name.split(".")[1] for name in MODULES if "." in name} >= set(ALLOWED) - {"src"}
    found = [" -> ".join(way) for way in circles({name: imported(name) for name in MODULES})]
    assert not found, "\n".join(found)


def test_a_circle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str]()}
    assert list(circles(graph)) == [["b", "c", "b"], ["c", "b", "c"]]
