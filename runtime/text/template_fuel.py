"""What rendering a chat template may spend, and the sizes of what it makes."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

ITEM = 32
"""What an item of a list counts as. Units: characters."""

_MAX_BITS = 4096  # of an integer


class Fuel(threading.local):
    """What a rendering may still spend.

    Units: characters made. An item of a list counts as 32; each node of the template that a turn
    of a loop or a call goes through, as 64.
    """

    n_left = 0

    def pay(self, n: int) -> None:
        """Raises:
        SecurityError: There is not that much left.
        """
        n_left = self.n_left = self.n_left - n
        if n_left < 0:
            raise SecurityError(
                "it takes too many steps or makes too much text; pass plain text or mend it"
            )

    def pay_for(self, value: Any) -> int:
        """Pays for all that ``value`` holds, however deep; returns how much that was."""
        if type(value) is str:
            self.pay(len(value))
            return len(value)
        before, waiting = self.n_left, [value]
        while waiting:
            item = waiting.pop()
            self.pay(ITEM + own_size(item))
            waiting.extend(parts(item))
        return before - self.n_left

    def counted(self, items: Iterable[Any], price: int = ITEM) -> Iterator[Any]:
        """Yields ``items``, each paid for with ``price``."""
        for item in items:
            self.pay(price)
            yield item


def own_size(value: Any) -> int:
    """Returns what ``value`` itself takes, its parts not counted."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        raise SecurityError("number too large")
    return 1


def parts(value: Any) -> Iterable[Any]:
    """Returns what ``value`` holds, keys included."""
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | Set | ValuesView):
        return value
    if isinstance(value, Namespace):
        return [getattr(value, "_Namespace__attrs")]  # noqa: B009  its text shows them
    return ()


def is_lazy(value: Any) -> bool:
    """Says whether ``value`` is yet to be made."""
    return isinstance(value, Iterator)


def shallow_size(value: Any) -> int:
    """Returns what a copy of ``value`` takes that shares its parts."""
    if isinstance(value, str | bytes):
        return len(value)
    return ITEM * (1 + len(value)) if hasattr(value, "__len__") else own_size(value)


def whole(value: Any) -> int:
    """Returns the size that ``value`` asks for; nothing where it is no number."""
    return max(value, -value) if isinstance(value, int) else 1


def replaced_size(text: str, old: Any, new: Any) -> int:
    """Returns what ``text.replace(old, new)`` takes at most."""
    if not (isinstance(old, str) and isinstance(new, str)):
        return len(text)
    return len(text) + text.count(old) * len(new)


def depth(value: Any) -> int:
    """Returns how deep ``value`` is nested; nothing holds no others at 0."""
    if isinstance(value, str) or not (held := list(parts(value))):
        return 0
    return 1 + max(map(depth, held))
