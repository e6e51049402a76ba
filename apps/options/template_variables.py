"""Variables for a model's chat template, as command lines state them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated, Any

import typer

from edgedec.apps.console.option import option
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine

TemplateVar = Annotated[
    list[str] | None,
    option(
        "NAME=VALUE",
        "Give the chat template a variable, such as enable_thinking=false. VALUE is JSON, or "
        "text. Repeatable.",
    ),
]


def parse_template_variables(pairs: list[str] | None) -> dict[str, Any]:
    """Returns the variables written as ``NAME=VALUE``; a value that is no JSON is text."""
    variables: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier() or name in variables:
            raise typer.BadParameter(
                f"got {pair!r}, expected each NAME=VALUE once, such as enable_thinking=false",
                param_hint="--template-var",
            )
        try:
            variables[name] = json.loads(value)
        except (ValueError, RecursionError):
            variables[name] = value
    return variables


def with_template_variables(
    request: GenerationConfig, engine: Engine, variables: dict[str, Any]
) -> GenerationConfig:
    """Returns ``request`` with ``variables``, which the model's chat template has to read."""
    for name in variables:
        if not engine.encoder.reads(name):
            raise ConfigError(
                f"got --template-var {name}, but this model's chat template reads no such "
                "variable: leave it out"
            )
    return replace(request, template_variables=variables)
