"""`--switch` and what belongs to it, in `run` and `chat`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from edgedec.apps.options.switching import APPROXIMATE, SwitchOptions
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.engine.stream import Stream

Cli = Callable[..., Any]


def setting(**given: Any) -> SwitchConfig | None:
    return SwitchOptions(**given).apply(GenerationConfig()).switch


def test_options_make_a_setting() -> None:
    assert setting() is None
    assert setting(switch="ead") == SwitchConfig()
    found = setting(switch="margin", threshold="0.4", window=3, dwell=2, switch_mode="repair")
    assert found == SwitchConfig(policy="margin", threshold=0.4, window=3, dwell=2, mode="repair")
    whole = setting(switch="ead:threshold=1.5,window=7", dwell=1, reset_window=True, hysteresis=0.5)
    assert whole == SwitchConfig(
        threshold=1.5, window=7, dwell=1, reset_window=True, hysteresis=0.5
    )
    bild = setting(switch="bild", fallback=0.4, rollback=2.0, max_run=9)
    assert bild == SwitchConfig(policy="bild", fallback=0.4, rollback=2.0, max_run=9)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"threshold": "1"}, "--threshold was given without --switch"),
        ({"switch_mode": "verify"}, "--switch-mode was given without --switch"),
        ({"reset_window": True}, "--reset-window was given without --switch"),
        ({"switch": "ead", "threshold": "much"}, "threshold is 'much', expected a number"),
        ({"switch": "ead", "window": 3}, "window is given but the threshold is auto"),
        ({"switch": "ead:dwell=3", "threshold": "auto"}, "dwell is given but the threshold is"),
        ({"switch": "best"}, "policy is 'best', expected one of ead, margin, bild"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        setting(**given)
    assert message in str(caught.value)


@pytest.mark.e2e
def test_run_with_its_own_model_as_the_draft_one(cli: Cli, small_bundle: Path) -> None:
    ask = ("run", small_bundle, "Name three colours.", "-n", 24, "--threads", 2)
    plain = cli(*ask, "--json").json
    pair = (*ask, "--draft", small_bundle)
    for given in ("ead:threshold=inf", "ead:threshold=-1", "margin:threshold=0.3", "bild"):
        outcome = cli(*pair, "--switch", given, "--json")
        found = outcome.json
        assert found["token_ids"] == plain["token_ids"]
        assert found["method"] == given.partition(":")[0]
        assert found["lossless"] is False
        assert outcome.err.count(APPROXIMATE) == 1
        n_target = found["origins"].count("target")
        assert found["switch"]["share_target"] == n_target / len(found["origins"])
        assert found["switch"]["cost_paper"] == 1.0  # both are of one size
    verified = cli(*pair, "--switch", "ead:threshold=inf,mode=verify", "--json", "--explain")
    assert verified.json["lossless"] is True
    assert "draft" in verified.json["origins"]
    assert APPROXIMATE not in verified.err
    assert "tokens from the target model" in verified.err


@pytest.mark.e2e
@pytest.mark.parametrize(("vocabulary", "can_switch"), [("all", True), (1024, False)])
def test_an_exported_pair_takes_turns_where_the_draft_model_has_all_tokens(
    cli: Cli, small_model: Path, tmp_path: Path, vocabulary: str | int, can_switch: bool
) -> None:
    pair = tmp_path / "pair.edgedec"
    words = ("--draft", small_model, "--draft-vocabulary", vocabulary, "--context", 128)
    done = cli("export", small_model, "-o", pair, *words)
    assert done.exit_code == 0, done.err
    ran = cli("run", pair, "Name three rivers.", "-n", 6, "--switch", "ead:threshold=1", "--json")
    if can_switch:
        assert ran.exit_code == 0, ran.err
        assert ran.json["lossless"] is False
        assert set(ran.json["origins"]) <= {"draft", "target"}
    else:
        assert "export with --draft-vocabulary all" in ran.error


@pytest.mark.e2e
def test_chat_tells_once_and_run_refuses(
    cli: Cli, small_bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = tmp_path / "lines"
    lines.write_text("Hi\nAnd now?\n")
    with lines.open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        outcome = cli(
            "chat", small_bundle, "--draft", small_bundle, "-n", 4, "--threads", 2,
            "--switch", "ead", "--threshold", "2.0", "--json",
        )  # fmt: skip
    assert len(outcome.json["turns"]) == 2
    assert outcome.err.count(APPROXIMATE) == 1
    command = ("run", small_bundle, "Hi", "--switch", "bild")
    assert "switching needs a second, smaller model" in cli(*command).error
    assert "switching is a method of its own" in cli(*command, "--method", "auto").error


@pytest.mark.e2e
def test_chat_at_a_terminal_catches_up_between_turns(
    cli: Cli, small_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines, caught_up, is_done = iter(["Hi", "And now?"]), list[int](), Event()
    catch_up = Stream.catch_up

    def caught(stream: Stream, is_over: Callable[[], bool]) -> None:
        caught_up.append(catch_up(stream, is_over))
        is_done.set()

    def said(prompt: str) -> str:
        assert is_done.wait(60)
        is_done.clear()
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("sys.stdin", Keyboard())
    monkeypatch.setattr("builtins.input", said)
    monkeypatch.setattr(Stream, "catch_up", caught)
    is_done.set()  # nothing was said yet
    outcome = cli(
        "chat", small_bundle, "--draft", small_bundle, "-n", 8, "--threads", 2,
        "--switch", "ead:threshold=inf", "--json",
    )  # fmt: skip
    turns = outcome.json["turns"]
    # The target model missed all tokens of the answer, the draft model the last of them.
    assert caught_up == [len(turn["token_ids"]) + 1 for turn in turns]
    assert turns[1]["switch"]["passes"]["draft"]["prompt_ms"] > 0


@pytest.mark.parametrize(
    ("setting", "mode"),
    [("bild", "repair"), ("bild:mode=trust", "trust"), ("ead:threshold=1", "trust"),
     ("margin:threshold=0.5,mode=verify", "verify")],
)  # fmt: skip
def test_bild_repairs_by_default_as_its_paper_does(setting: str, mode: str) -> None:
    switch = SwitchConfig.parse(setting)
    assert switch.mode == mode
    assert SwitchConfig.parse(str(switch)) == switch
