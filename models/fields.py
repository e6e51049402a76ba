"""Type-checked access to JSON objects that strangers wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar, cast

from edgedec.models.errors import BundleError

V = TypeVar("V")
_MAX_COUNT = 2**31 - 1


class Fields:
    """A JSON object whose every access is type-checked.

    A violation is a `BundleError` with the place (``where``), what was got and what was expected.
    """

    def __init__(self, values: object, where: str) -> None:
        self.where = where
        if not isinstance(values, Mapping):
            self.fail(None, values, "a JSON object")
        self.values: Mapping[str, Any] = values

    def fail(self, key: str | None, got: object, expected: str) -> NoReturn:
        where = self.where if key is None else f"{self.where}.{key}"
        where = "".join(c if c.isprintable() else "?" for c in where[:200])
        raise BundleError(f"{where} is {shown(got)}, expected {expected}: export the model again")

    def only(self, known: set[str]) -> None:
        if unknown := sorted(str(key) for key in set(self.values) - known):
            self.fail(None, f"an object with {unknown[0]!r}", f"only {', '.join(sorted(known))}")

    def get(self, key: str) -> Any:
        if key not in self.values:
            raise BundleError(f"{self.where}.{key} is missing: export the model again")
        return self.values[key]

    def optional(self, key: str, read: Callable[[str], V]) -> V | None:
        return None if self.get(key) is None else read(key)

    def younger(self, key: str, read: Callable[[str], V]) -> V | None:
        """Returns None where a key that came after the first bundles is absent or null."""
        return self.optional(key, read) if key in self.values else None

    def text(self, key: str) -> str:
        value = self.get(key)
        return value if isinstance(value, str) else self.fail(key, value, "text")

    def texts(self, key: str) -> tuple[str, ...]:
        return tuple(
            v if isinstance(v, str) else self.fail(key, v, "texts") for v in self.items(key)
        )

    def flag(self, key: str) -> bool:
        value = self.get(key)
        return value if isinstance(value, bool) else self.fail(key, value, "true or false")

    def count(self, key: str, least: int = 0, most: int = _MAX_COUNT) -> int:
        return self._count(key, self.get(key), least, most)

    def counts(self, key: str, most: int = _MAX_COUNT) -> tuple[int, ...]:
        return tuple(self._count(key, value, 0, most) for value in self.items(key))

    def _count(self, key: str, value: object, least: int, most: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(key, value, f"an integer from {least} to {most}")
        return value

    def number(self, key: str) -> float:
        return self._number(key, self.get(key))

    def numbers(self, key: str) -> tuple[float, ...]:
        return tuple(self._number(key, value) for value in self.items(key))

    def _number(self, key: str, value: object) -> float:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not abs(cast(float, value)) < 1e30:
            self.fail(key, value, "a number")
        return float(cast(float, value))

    def items(self, key: str) -> Sequence[Any]:
        value = self.get(key)
        return value if isinstance(value, list | tuple) else self.fail(key, value, "a list")

    def mapping(self, key: str) -> Mapping[str, Any]:
        return self.child(key).values

    def child(self, key: str) -> Fields:
        return Fields(self.get(key), f"{self.where}.{key}")

    def children(self, key: str, known: tuple[str, ...] = ()) -> list[tuple[str, Fields]]:
        values = self.child(key)
        if known:
            values.only(set(known))
        return [(name, values.child(name)) for name in values.values]


def shown(value: object) -> str:
    """Returns ``value`` short and on one line, however long or nested it is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # integers over 4300 digits have no repr
        text = type(value).__name__
    return text if len(text) <= 80 else f"{text[:77]}..."
