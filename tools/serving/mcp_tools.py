"""Records the schemas of MCP servers' tools, without their descriptions.

    python tools/serving/mcp_tools.py OUT.json NAME=COMMAND [NAME=COMMAND ...]

Each command starts a server that talks over standard input and output. OUT.json keeps the servers
that are already in it. `tests/apps/serve/test_mcp_tools.py` reads it.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PROTOCOL = "2025-06-18"
_SECONDS = 60
_WORDS = ("description", "title", "examples", "default", "$comment", "markdownDescription")
"""Keywords that restrict nothing."""


def tools_of(command: str) -> dict[str, Any]:
    """Returns a server's version, and the schemas of its tools by name."""
    process = subprocess.Popen(
        shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    try:
        for message in _messages():
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()
        answers = _answers(process)
        version = next(answers)["result"]["serverInfo"]["version"]
        tools = next(answers)["result"]["tools"]
    finally:
        process.kill()
        process.wait(_SECONDS)
    return {
        "version": version,
        "tools": {tool["name"]: bare(tool["inputSchema"]) for tool in tools},
    }


def _messages() -> Iterator[dict[str, Any]]:
    client = {"name": "edgedec", "version": "1"}
    params = {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": client}
    yield {"id": 1, "method": "initialize", "params": params}
    yield {"method": "notifications/initialized"}
    yield {"id": 2, "method": "tools/list", "params": {}}


def _answers(process: subprocess.Popen[str]) -> Iterator[Any]:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and "result" in (message := json.loads(line)):
            yield message


def bare(schema: Any, is_names: bool = False) -> Any:
    """Returns ``schema`` without what only people read. is_names: its keys are no keywords."""
    if isinstance(schema, list):
        return [bare(part) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: bare(part, not is_names and key in ("properties", "$defs", "definitions"))
        for key, part in schema.items()
        if is_names or key not in _WORDS
    }


def main(arguments: list[str]) -> None:
    """Adds the servers that the arguments name."""
    path = Path(arguments[0])
    tools = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    for argument in arguments[1:]:
        name, _, command = argument.partition("=")
        tools[name] = tools_of(command)
        print(f"{name} {tools[name]['version']}: {len(tools[name]['tools'])} tools")
    lines = [f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in sorted(tools.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
