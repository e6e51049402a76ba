"""Type-checked access to what strangers wrote: JSON objects, and the metadata of model files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from edgedec.models.errors import EdgedecError, UnsupportedModelError

V = TypeVar("V")

_MAX_SHOWN = 80


class Fields:
    """A mapping whose every access is type-checked.

    An absent key and an explicit null read the same: as ``default``, or as an error without one.

    Args:
        values: the mapping.
        origin: the file or document it comes from, which errors name.
        error: what a violation raises.
        hint: what the reader of an error should do.
        path: where in the document the mapping is.
    """

    def __init__(
        self,
        values: object,
        origin: str,
        error: type[EdgedecError],
        hint: str = "",
        path: str = "",
    ) -> None:
        self.origin = origin
        self.path = path
        self._error = error
        self._hint = hint
        if not isinstance(values, Mapping):
            self.fail(None, values, "a table")
        self.values: Mapping[str, Any] = values

    def fail(self, key: str | None, got: object, expected: str) -> NoReturn:
        """Raises: ``key`` (None: the mapping itself) is ``got``, expected was ``expected``."""
        self.refuse_with(key, f"is {shown(got)}, expected {expected}")

    def refuse_with(self, key: str | None, reason: str) -> NoReturn:
        """Raises with ``reason`` behind the place of ``key`` (None: of the mapping itself)."""
        hint = f": {self._hint}" if self._hint else ""
        raise self._error(f"{self._place(key)} {reason}{hint}")

    def only(self, known: set[str]) -> None:
        """Raises if there is a key besides ``known``."""
        if unknown := sorted(str(key) for key in set(self.values) - known):
            self.refuse_with(
                None, f"has the key {shown(unknown[0])}, expected only {', '.join(sorted(known))}"
            )

    def exactly(self, known: set[str]) -> None:
        """Raises unless the keys are ``known``."""
        self.only(known)
        if missing := sorted(known - set(self.values)):
            self.refuse_with(missing[0], "is missing")

    def get(self, key: str) -> Any:
        """Returns the value of ``key``, None if it is absent."""
        return self.values.get(key)

    def optional(self, key: str, read: Callable[[str], V]) -> V | None:
        """Returns ``read(key)``, or None where ``key`` is absent."""
        return None if self.get(key) is None else read(key)

    def text(self, key: str, default: str | None = None) -> str:
        """Returns a text."""
        value = self._value(key, default)
        return value if isinstance(value, str) else self.fail(key, value, "text")

    def texts(self, key: str) -> tuple[str, ...]:
        """Returns a list of texts."""
        return tuple(
            v if isinstance(v, str) else self.fail(key, v, "texts") for v in self.items(key)
        )

    def flag(self, key: str, default: bool | None = None) -> bool:
        """Returns true or false."""
        value = self._value(key, default)
        return value if isinstance(value, bool) else self.fail(key, value, "true or false")

    def integer(
        self,
        key: str,
        default: int | None = None,
        least: int | None = None,
        most: int | None = None,
    ) -> int:
        """Returns a whole number, also one written as 4.0, from ``least`` to ``most``."""
        return self._integer(key, self._value(key, default), least, most)

    def integers(
        self, key: str, least: int | None = None, most: int | None = None
    ) -> tuple[int, ...]:
        """Returns a list of whole numbers."""
        return tuple(self._integer(key, value, least, most) for value in self.items(key))

    def number(self, key: str, default: float | None = None) -> float:
        """Returns a finite number."""
        return self._number(key, self._value(key, default))

    def numbers(self, key: str) -> tuple[float, ...]:
        """Returns a list of finite numbers."""
        return tuple(self._number(key, value) for value in self.items(key))

    def items(self, key: str) -> Sequence[Any]:
        """Returns a list of anything."""
        value = self._value(key, None)
        return value if isinstance(value, list | tuple) else self.fail(key, value, "a list")

    def table(self, key: str, default: Mapping[str, Any] | None = None) -> Fields:
        """Returns the nested mapping ``key``."""
        return self.nested(key, self._value(key, default))

    def nested(self, key: str, values: object) -> Fields:
        """Returns ``values``, which lie at ``key``, as fields."""
        path = f"{self.path}.{key}" if self.path else key
        return Fields(values, self.origin, self._error, self._hint, path)

    def tables(self, key: str) -> list[tuple[str, Fields]]:
        """Returns the mappings that the mapping ``key`` holds, by name."""
        outer = self.table(key)
        return [(name, outer.table(name)) for name in outer.values]

    def refuse(self, key: str, *harmless: Any) -> None:
        """Raises UnsupportedModelError unless ``key`` is absent or one of ``harmless``."""
        value = self.get(key)
        is_plain = isinstance(value, bool | int | float | str)
        if value is not None and not (is_plain and value in harmless):
            either = " or ".join(repr(value) for value in harmless) or "its absence"
            raise UnsupportedModelError(
                f"{self._place(key)} is {shown(value)}, only {either} is supported"
            )

    def _place(self, key: str | None) -> str:
        path = ".".join(part for part in (self.path, key) if part)
        path = "".join(c if c.isprintable() else "?" for c in path[:200])
        return f"{self.origin}: {path}" if path else self.origin

    def _value(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            self.refuse_with(key, "is missing")
        return value

    def _integer(self, key: str, value: object, least: int | None, most: int | None) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not _is_between(value, least, most):
            self.fail(key, value, _range_text(least, most))
        assert isinstance(value, int)
        return value

    def _number(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, value, "a number")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self.fail(key, value, "a finite number")
        return number


def shown(value: object) -> str:
    """Returns ``value`` short and on one line, however long or nested it is."""
    if isinstance(value, Mapping):
        return f"a table of {len(value)}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    try:
        text = repr(value[:_MAX_SHOWN] if isinstance(value, str) else value)
    except (ValueError, RecursionError):  # integers over 4300 digits have no repr
        text = type(value).__name__
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."


def _is_between(value: Any, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _range_text(least: int | None, most: int | None) -> str:
    if least is None:
        return "an integer"
    return f"an integer of at least {least}" if most is None else f"an integer, {least} to {most}"
