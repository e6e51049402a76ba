"""The server's OpenAPI document: what each address reads, and the errors it may answer with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from edgedec.apps.serve.api.endpoint import Endpoint
from edgedec.apps.serve.core import ServeError
from edgedec.apps.serve.handlers import Address
from edgedec.models.installation import distribution_version

_REF = "#/components/schemas/{model}"
_JSON = "application/json"
_EVENTS = "text/event-stream"

_REFUSED = {
    "400": "The request makes no sense, or does not fit the context.",
    "401": "The API key is missing or wrong.",
    "403": "The host or web page may not ask.",
    "404": "There is no such model.",
    "408": "The body did not come in time.",
    "413": "The body is too long.",
    "500": "The model failed.",
    "503": "The server is full, ending, or has no memory for the model.",
    "504": "The answer took too long.",
}


def document(endpoints: Sequence[Endpoint], others: Sequence[Address]) -> dict[str, Any]:
    """Returns the document. others: the addresses besides those of answers."""
    rows: list[Endpoint | Address] = [*endpoints, *others]
    read = [(row.path, row.error, row.body) for row in rows if row.body is not None]
    kinds = list(dict.fromkeys(body for _, _, body in read))
    refs, schemas = models_json_schema([(kind, "validation") for kind in kinds], ref_template=_REF)
    streams = {endpoint.path: endpoint.media_type for endpoint in endpoints}
    paths: dict[str, Any] = {
        path: {"post": _operation(path, error, streams.get(path), refs[body, "validation"])}
        for path, error, body in read
    }
    for row in others:
        if row.body is None:
            path = row.path.replace(":path}", "}")
            paths.setdefault(path, {})["get"] = _get(path, row.error)
    return {
        "openapi": "3.1.0",
        "info": {"title": "edgedec serve", "version": distribution_version()},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }


def _operation(
    path: str,
    error: Callable[[ServeError], Mapping[str, Any]],
    stream_type: str | None,
    body: Mapping[str, Any],
) -> dict[str, Any]:
    content: dict[str, Any] = {_JSON: {"schema": {"type": ["object", "array"]}}}
    if stream_type is not None:
        piece = "object" if stream_type == _EVENTS else "string"
        content[stream_type] = {"schema": {"type": piece}}
    return {
        "summary": f"POST {path}",
        "requestBody": {"required": True, "content": {_JSON: {"schema": body}}},
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **_problems(error),
        },
    }


def _get(path: str, error: Callable[[ServeError], Mapping[str, Any]]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": f"GET {path}",
        "responses": {"200": {"description": "What is known."}, **_problems(error)},
    }
    if "{name}" in path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [name]
    return operation


def _problems(error: Callable[[ServeError], Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the responses that tell of problems; their form is that of an example."""
    schema = _shape_of(error(ServeError(400, "invalid_request_error", "-")))
    content = {_JSON: {"schema": schema}}
    return {status: {"description": text, "content": content} for status, text in _REFUSED.items()}


def _shape_of(example: Any) -> dict[str, Any]:
    """Returns the schema of documents that have what ``example`` has, texts and objects alike."""
    if isinstance(example, str):
        return {"type": "string"}
    if not isinstance(example, Mapping):
        return {}
    fields = {name: _shape_of(value) for name, value in example.items()}
    return {"type": "object", "properties": fields, "required": sorted(fields)}
