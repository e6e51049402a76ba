"""Some of the assertions of a program that tests another."""

from __future__ import annotations

import ast
from collections.abc import Callable


def public_half(test: str) -> str:
    """Returns tests without every second assertion; the others stay held back."""
    return _with_assertions(test, lambda i: i % 2 == 0)


def one_by_one(test: str) -> list[str]:
    """Returns tests that have one assertion each; ``test`` itself if it has less than two."""
    n = len(_assertions(test))
    if n < 2:
        return [test]
    return [_with_assertions(test, lambda i, only=only: i == only) for only in range(n)]  # type: ignore[misc]


def _with_assertions(test: str, is_kept: Callable[[int], bool]) -> str:
    """Returns tests with those of their assertions, numbered from 0, that ``is_kept`` names.

    Assertions are those of the program itself and of a function ``check``, but for those inside
    other statements. What is no Python is left as it is.
    """
    places = _assertions(test)
    if not places:
        return test
    module = ast.parse(test)
    dropped = {line for i, line in enumerate(places) if not is_kept(i)}
    for body in _bodies(module):
        body[:] = [
            statement
            for statement in body
            if not _is_assertion(statement) or _place(statement) not in dropped
        ]
        if not body:
            body.append(ast.Pass())
    return ast.unparse(module)


def _assertions(test: str) -> list[tuple[int, int]]:
    """Returns where assertions are, in the order of the text."""
    try:
        module = ast.parse(test)
    except (SyntaxError, ValueError, RecursionError):
        return []
    places = [
        _place(statement)
        for body in _bodies(module)
        for statement in body
        if _is_assertion(statement)
    ]
    return sorted(places)


def _bodies(module: ast.Module) -> list[list[ast.stmt]]:
    checks = [
        statement.body
        for statement in module.body
        if isinstance(statement, ast.FunctionDef) and statement.name == "check"
    ]
    return [module.body, *checks]


def _is_assertion(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Assert)


def _place(statement: ast.stmt) -> tuple[int, int]:
    return statement.lineno, statement.col_offset
