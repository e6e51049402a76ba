"""`edgedec chat`, fed by a pipe."""

from __future__ import annotations

import io
import json
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
    assert "/save FILE" in done.err
    assert "there is no /quit: /help lists the commands" in done.err


def test_a_message_of_several_lines(say: Cli) -> None:
    done = say('"""Two lines:\n\n  this one"""\n"""one"""\n"""never\nended', "--json")
    said = [turn["user"] for turn in done.json["turns"]]
    assert said == ["Two lines:\n\n  this one", "one", "never\nended"]


def test_the_system_prompt_changes_and_the_turns_stay(say: Cli) -> None:
    changed = say("My name is Ada.\n/system Be brief.\nWhat is my name?\n", "--json")
    first, second = changed.json["turns"]
    begun = say("/system\nMy name is Ada.\n/system\n", "--system", "Be brief.", "--json")
    assert begun.err.count("Be brief.") == 2
    assert second["n_prompt_tokens"] > first["n_prompt_tokens"]


def test_undo(say: Cli) -> None:
    done = say("My name is Ada.\nForget it.\n/undo\nForget it.\n/undo\n/undo\n/undo\n", "--json")
    _, second, again = done.json["turns"]
    assert second["token_ids"] == again["token_ids"]
    assert done.err.count("removed: Forget it.") == 2
    assert "there is nothing to undo" in done.err


def test_a_chat_is_saved_and_continued(say: Cli, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    whole = say(f"My name is Ada.\n/save {path}\nWhat is my name?\n", "--json")
    messages = json.loads(path.read_text())
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert path.stat().st_mode & 0o077 == 0
    later = say(f"/load {path}\nWhat is my name?\n", "--json")
    assert later.json["turns"][0]["token_ids"] == whole.json["turns"][1]["token_ids"]
    again = say(f"/load {path}\n/save {path}\n")
    assert again.exit_code == 0
    assert json.loads(path.read_text()) == messages


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"role": 1, "content": ""}]', "[" * 9999])
def test_other_files_are_neither_loaded_nor_replaced(say: Cli, tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    assert "is not a saved chat" in say(f"/load {path}\n").error
    assert "is not a saved chat" in say(f"Hello\n/save {path}\n", "--json").err
    assert path.read_text() == text
    assert "cannot read" in say(f"/load {tmp_path / 'none.json'}\n").error
    assert "/save chat.json" in say("/save\n").error


def test_a_full_context_slides(say: Cli) -> None:
    done = say("Tell me a story.\n" * 6, "--context", 128, "--json")
    turns = done.json["turns"]
    assert len(turns) == 6
    assert all(turn["n_prompt_tokens"] <= 128 - 16 for turn in turns)
    assert "the context is full: the model no longer sees the first" in done.err


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
