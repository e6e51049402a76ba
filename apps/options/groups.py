"""Options that belong together are a dataclass; a verb takes it as one parameter."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

Verb = Callable[..., None]


def takes_groups(verb: Verb) -> Verb:
    """Returns ``verb`` with an option for each field of the dataclasses among its parameters.

    Every field needs a default, and a name no other option has.
    """
    hints = get_type_hints(verb, include_extras=True)
    parameters: list[inspect.Parameter] = []
    groups: dict[str, type[Any]] = {}
    for name, parameter in inspect.signature(verb).parameters.items():
        if dataclasses.is_dataclass(hints[name]):
            groups[name] = hints[name]
            parameters += _parameters(hints[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @functools.wraps(verb)
    def with_groups(**values: Any) -> None:
        for name, group in groups.items():
            fields = dataclasses.fields(group)
            values[name] = group(**{field.name: values.pop(field.name) for field in fields})
        verb(**values)

    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    signature = inspect.Signature(keyword_only, return_annotation=None)
    with_groups.__signature__ = signature  # type: ignore[attr-defined]
    with_groups.__annotations__ = {p.name: p.annotation for p in keyword_only}
    return with_groups


def _parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]
