"""Places of Python sources where one small change makes a program behave differently, or should."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
_UNTOUCHED = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)  # what errors say is not behaviour


class Place(NamedTuple):
    """One place. within: qualified name of the outermost function, or ``=NAME`` of a constant."""

    line: int
    what: str
    within: str


Job = tuple[Path, int, Place]  # file, number of the place in it, the place


def places_of(files: Sequence[Path]) -> list[Job]:
    """Returns all places of ``files``."""
    return [
        (file, number, place)
        for file in files
        for number, place in enumerate(places(file.read_text(encoding="utf-8")))
    ]


def drawn(jobs: Sequence[Job], n: int, seed: int) -> list[Job]:
    """Returns ``n`` of ``jobs`` in their order, the same ones for the same seed."""
    picked = random.Random(seed).sample(range(len(jobs)), min(n, len(jobs)))
    return [jobs[i] for i in sorted(picked)]


def places(source: str) -> list[Place]:
    """Returns all places of ``source``; their order is the same each time."""
    changer = _Changer(None)
    changer.visit(ast.parse(source))
    return changer.places


def mutant(source: str, number: int) -> ast.Module:
    """Returns ``source`` with the change at place ``number``."""
    changed = _Changer(number).visit(ast.parse(source))
    assert isinstance(changed, ast.Module)
    return ast.fix_missing_locations(changed)


def constants(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yields the name and the value of a module's constant that ``statement`` defines, if any."""
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        return
    target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
    value = statement.value
    if isinstance(target, ast.Name) and isinstance(value, ast.Constant | ast.BinOp | ast.UnaryOp):
        yield target.id, value


class _Changer(ast.NodeTransformer):
    """Walks over functions and module constants; changes the place with one number, if any."""

    def __init__(self, number: int | None) -> None:
        self._number = number
        self._within: list[str] = []
        self.places: list[Place] = []

    def visit_Module(self, node: ast.Module) -> ast.AST:
        for part in node.body:
            if isinstance(part, ast.FunctionDef | ast.ClassDef):
                self.visit(part)
            elif isinstance(part, ast.Assign | ast.AnnAssign):
                for name, value in constants(part):
                    self._within.append("=" + name)
                    part.value = self.visit(value)
                    self._within.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        for part in node.body:
            if isinstance(part, ast.FunctionDef):
                self._within.append(f"{node.name}.{part.name}")
                part.body = self._block(part.body)
                self._within.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._within.append(node.name)
        node.body = self._block(node.body)
        self._within.pop()
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns"):
                continue
            if isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self._block(value))
            elif isinstance(value, list):
                parts = [self.visit(x) if isinstance(x, ast.AST) else x for x in value]
                setattr(node, name, parts)
        return node

    def visit_If(self, node: ast.If) -> ast.AST:
        return self._condition(node)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._condition(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        return self._condition(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        for i, operator in enumerate(node.ops):
            other = _COMPARISONS[type(operator)]
            if self._is_here(node, type(operator).__name__):
                node.ops[i] = other()
                return node
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        is_text = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
        return node if is_text else self._operator(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        return self._operator(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        if self._is_here(node, type(node.op).__name__):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            return node
        return self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        may_go = isinstance(node.op, ast.Not | ast.USub)
        if may_go and self._is_here(node, f"no {type(node.op).__name__}"):
            return node.operand
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _FUNCTIONS and self._is_here(node, name):
            node.func = ast.copy_location(ast.Name(_FUNCTIONS[name], ast.Load()), node.func)
            return node
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        other: float
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, int):
            other = value + 1
        elif isinstance(value, float):
            other = value * 1.5 + (value == 0)
        else:
            return node
        is_here = self._is_here(node, f"{value} -> {other}")
        return ast.copy_location(ast.Constant(other), node) if is_here else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def _is_here(self, node: ast.stmt | ast.expr, what: str) -> bool:
        """Notes a place, and says whether it is the one to change."""
        self.places.append(Place(node.lineno, what, self._within[0]))
        return len(self.places) - 1 == self._number

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Changes statements, or leaves one out that is there for its effect."""
        changed: list[ast.stmt] = []
        for statement in statements:
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if is_text or isinstance(statement, _UNTOUCHED):
                changed.append(statement)
            elif _has_effect(statement) and self._is_here(statement, "left out"):
                changed.append(ast.copy_location(ast.Pass(), statement))
            else:
                changed.append(self.visit(statement))
        return changed

    def _condition(self, node: ast.If | ast.While | ast.IfExp) -> ast.AST:
        is_changed_inside = isinstance(node.test, ast.Compare | ast.BoolOp | ast.UnaryOp)
        if not is_changed_inside and self._is_here(node, "not"):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
            return node
        return self.generic_visit(node)

    def _operator(self, node: ast.BinOp | ast.AugAssign) -> ast.AST:
        other = _OPERATORS.get(type(node.op))
        if other is not None and self._is_here(node, type(node.op).__name__):
            node.op = other()
            return node
        return self.generic_visit(node)


def _has_effect(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return isinstance(statement.targets[0], ast.Attribute | ast.Subscript)
    is_call = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
    return is_call or isinstance(statement, ast.AugAssign)
