"""What others may call says what it returns or does."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = (
    "apps",
    "autocomplete",
    "examples",
    "export",
    "kernels",
    "labs",
    "models",
    "runtime",
    "targets",
    "tools",
    "training",
    "widgets",
)
CONTRACTS = {"ABC", "Protocol", "NodeVisitor"}


def is_contract(node: ast.ClassDef) -> bool:
    """Says whether a class states what others implement."""
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return any(isinstance(base, ast.Name) and base.id in CONTRACTS for base in bases)


def contracted(trees: Iterable[ast.Module]) -> set[str]:
    """Returns the methods that a contract documents, so that those who implement it need not."""
    return {
        method.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.ClassDef) and is_contract(node)
        for method in node.body
        if isinstance(method, ast.FunctionDef) and ast.get_docstring(method)
    }


def undocumented(
    node: ast.Module | ast.ClassDef, known: set[str], prefix: str = ""
) -> Iterator[str]:
    """Yields the public functions, classes and methods in ``node`` that say nothing."""
    is_implementing = isinstance(node, ast.ClassDef) and not is_contract(node)
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            is_known = is_implementing and child.name in known
            if not (ast.get_docstring(child) or is_known):
                yield prefix + child.name
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, known, f"{prefix}{child.name}.")


def test_public_names_have_docstrings() -> None:
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in files}
    assert len(trees) > 20
    known = contracted(trees.values())
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, tree in trees.items()
        for name in undocumented(tree, known)
    ]
    assert not found, "\n".join(found)
