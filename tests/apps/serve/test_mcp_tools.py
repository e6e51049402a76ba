"""The schemas of well-known MCP servers' tools: no request is refused, what is loosened is named.

`tools/serving/mcp_tools.py` of commit `607dc8de` recorded them.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

pytest.importorskip("llguidance", reason="needs the extra grammar")

from edgedec.apps.serve import tools
from edgedec.apps.serve.core import ChatPrompt, Tool
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sampling.grammar import Grammars

SERVERS = json.loads(Path(__file__).with_name("mcp_tools.json").read_text(encoding="utf-8"))
LOOSENED = {
    ("linear", "linear_generateOAuthApplicationSetup"): {"pattern", "uniqueItems"},
    ("linear", "linear_generateOAuthAuthorizationUrl"): {"uniqueItems"},
    ("linear", "linear_createOAuthClientCredentialsToken"): {"uniqueItems"},
    ("linear", "linear_createManagedOAuthApplication"): {"pattern", "uniqueItems"},
    ("linear", "linear_updateManagedOAuthApplication"): {"pattern", "uniqueItems"},
    ("linear", "linear_updateWebhook"): {"uniqueItems"},
}
"""The keywords that are not enforced, of all tools; checked by hand against the schemas."""


def prompt_of(server: str) -> ChatPrompt:
    return ChatPrompt([], [Tool(k, "", v) for k, v in SERVERS[server]["tools"].items()])


def test_they_are_many() -> None:
    assert len(SERVERS) >= 25
    assert sum(len(one["tools"]) for one in SERVERS.values()) >= 500


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_all_tools_of_a_server_together(grammars: Grammars, server: str) -> None:
    prompt = prompt_of(server)
    grammar = tools.grammar(prompt, {})
    request = GenerationConfig(grammar=grammar)
    assert grammars.mask(request, frozenset({2}))
    named = {k: {one.split(" of ")[0] for one in v} for k, v in tools.loosened(prompt).items()}
    assert named == {tool: words for (owner, tool), words in LOOSENED.items() if owner == server}


def written(engine: Engine, grammars: Grammars, schema: Any, seed: int) -> str | None:
    """Returns what chance writes under the grammar of a tool's arguments; None if it ends not."""
    prompt = ChatPrompt([], [Tool("f", "", schema)], "f")
    mask = grammars.mask(GenerationConfig(grammar=tools.grammar(prompt, {})), frozenset({2}))
    assert mask is not None
    rng, tokens = random.Random(seed), list[int]()
    spelt = (engine.tokenizer.encode(text)[0] for text in ('"', "}", "]", '"}', '"]', ","))
    ends = np.array(sorted({2, *spelt}))
    for _ in range(600):
        row = mask.row_after(())
        if mask.is_finished or row is None:
            break
        allowed = np.flatnonzero(row)
        likely = ends[row[ends]]
        token = int(rng.choice(likely if len(likely) and rng.random() < 0.5 else allowed))
        mask.accept(token)
        if token == 2:
            break
        tokens.append(token)
    else:
        return None
    return engine.tokenizer.decode(tokens)


@pytest.mark.slow
@pytest.mark.parametrize("server", SERVERS)
def test_calls_that_chance_writes_follow_their_schemas(
    engine: Engine, grammars: Grammars, server: str
) -> None:
    names = [name for name in SERVERS[server]["tools"] if (server, name) not in LOOSENED]
    n_ended = 0
    chosen = names[:: max(1, len(names) // 6)]
    for seed, name in enumerate(chosen * (1 if len(chosen) > 2 else 4)):
        schema = SERVERS[server]["tools"][name]
        if (text := written(engine, grammars, schema, seed)) is not None:
            n_ended += 1
            body = text.removeprefix("<tool_call>").removesuffix("</tool_call>")
            call = json.loads(body)
            assert call["name"] == "f"
            jsonschema.Draft202012Validator(schema).validate(call["arguments"])
    assert n_ended
