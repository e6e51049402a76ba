"""The page of fields says what the program does with each."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic")

from edgedec.apps.serve.api.fields import Body, read_body
from edgedec.apps.serve.core import ServeError

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools/docs/request_fields.py"))
BODIES: list[type[Body]] = [body for _, body in TOOL["ADDRESSES"].values()]


def test_the_page_is_what_the_tool_writes() -> None:
    page = (ROOT / "docs/request-fields.md").read_text(encoding="utf-8")
    assert page == TOOL["page"](), "run tools/docs/request_fields.py > docs/request-fields.md"


NEEDED = {
    "model": "a",
    "messages": [{"role": "user", "content": "Hi"}],
    "input": "Hi",
    "prompt": "Hi",
    "max_tokens": 4,
    "content": "Hi",
    "tokens": [1],
}


def _read(body: type[Body], name: str, value: Any) -> None:
    needed = {field: NEEDED[field] for field in NEEDED if field in body.model_fields}
    read_body(body, json.dumps({**needed, name: value}).encode())


@pytest.mark.parametrize("body", BODIES, ids=lambda body: f"{body.__module__}.{body.__name__}")
def test_rows_are_what_happens(body: type[Body]) -> None:
    for name, row in TOOL["refusals"](body).items():
        with pytest.raises(ServeError, match=name):
            _read(body, name, ["something"])
        for value in (None, 0, "", False, [], *row.unless):
            _read(body, name, value)
    for name in TOOL["without_effect"](body):
        _read(body, name, ["something"])
