"""`edgedec chat`, fed by a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import edgedec

Cli = Callable[..., Any]

pytestmark = pytest.mark.e2e


@pytest.fixture
def say(cli: Cli, smollm2_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Returns a function that chats: lines first, then options."""

    def run(lines: str, *options: object) -> Any:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        return cli("chat", smollm2_bundle, "-n", 16, *options)

    return run


def test_scheduler_reuse_the_kv_cache_and_remember(say: Cli, smollm2_bundle: Path) -> None:
    done = say("My name is Ada.\n\nWhat is my name?\n", "--json")
    assert done.exit_code == 0
    first, second = done.json["turns"]
    assert first["user"] == "My name is Ada."
    assert first["stats"]["n_reused_tokens"] == 0
    assert second["stats"]["n_reused_tokens"] >= first["n_prompt_tokens"]
    messages = [
        {"role": "user", "content": first["user"]},
        {"role": "assistant", "content": first["text"]},
        {"role": "user", "content": second["user"]},
    ]
    with edgedec.load(smollm2_bundle) as engine:
        anew = engine.generate(messages, edgedec.GenerationConfig(max_new_tokens=16))
    assert second["token_ids"] == list(anew.token_ids)


def test_reset_and_exit(say: Cli) -> None:
    done = say("My name is Ada.\n/reset\nMy name is Ada.\n/exit\nnever answered\n", "--json")
    first, second = done.json["turns"]
    assert first["token_ids"] == second["token_ids"]
    assert first["n_prompt_tokens"] == second["n_prompt_tokens"]


def test_commands_are_not_said_to_the_model(say: Cli) -> None:
    done = say("/help\n/quit\n/etc is what?\n", "--json")
    assert [turn["user"] for turn in done.json["turns"]] == ["/etc is what?"]
    told = [line for line in done.err.splitlines() if "/reset begins anew" in line]
    assert len(told) == 2
    assert told[1].startswith("there is no /quit: ")


def test_text(say: Cli) -> None:
    done = say("Hello!", "--system", "Answer briefly.")
    assert done.exit_code == 0
    assert done.out.strip()
    assert "tokens/s" in done.err


def test_a_full_context_is_one_line(say: Cli) -> None:
    done = say("word " * 300, "--context", 64)
    assert done.exit_code == 1
    assert "64" in done.error


def test_no_input_is_no_conversation(say: Cli) -> None:
    assert say("", "--json").json == {"turns": []}
