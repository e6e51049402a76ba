"""Where tokens come from, shown in colours; and options that come as groups."""

from __future__ import annotations

import dataclasses
import inspect
import io
import sys
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
import typer

from edgedec.apps.console.draft_colours import OriginColours
from edgedec.apps.console.progress import ProgressBars, count_amount
from edgedec.apps.console.stream_text import ShowOptions, explanation, write_stream
from edgedec.apps.options import common as options
from edgedec.apps.options.groups import takes_groups
from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.switching import Switching
from edgedec.runtime.engine.stream import Piece

from ..runtime.decoding.switching.switch_toys import draft_toy, role_of, target_toy
from ..runtime.draft_toys import PROMPT, open_stream

GREEN, CYAN, PLAIN = "\x1b[32m", "\x1b[36m", "\x1b[0m"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FakeResult:
    text = "one two three four"
    origins = ("target", "lookup", "draft", "target")
    n_prompt_tokens, n_new_tokens, finish_reason = 3, 4, "length"
    ttft_ms = tokens_per_s = 1.0
    is_in_order = True
    provisional_ms = 0.0
    stats = type("Stats", (), {"n_reused_tokens": 0})()


class FakeStream:
    """Four tokens, of which the last one's text only comes at the end."""

    result = FakeResult()
    method, takes_turns = "fake", False

    @property
    def pieces(self) -> Iterator[Piece]:
        parts = ("one ", "target"), ("two ", "lookup"), ("three ", "draft")
        return (Piece(text, origin, position=0) for text, origin in parts)

    def explain(self) -> list[str]:
        return ["lookup: 1 round", "off: 1 round"]

    def explain_rounds(self) -> list[str]:
        return ["round 1: lookup", "round 2: off"]

    def stop(self) -> None: ...


def written(monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO, **shown: bool) -> str:
    monkeypatch.setattr(sys, "stdout", stdout)
    bars = ProgressBars(count_amount)
    stream: Any = FakeStream()
    assert write_stream(stream, bars, ShowOptions(**shown), is_silent=False) is False
    return stdout.getvalue()


def test_drafted_tokens_are_coloured_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = written(monkeypatch, Terminal(), show_drafts=True)
    assert text == f"one {GREEN}two {PLAIN}{CYAN}three {PLAIN}four\n"
    assert "tokens by origin: target 2 · lookup 1 · draft 1" in capsys.readouterr().err


def test_models_that_take_turns_are_always_coloured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    target, draft = target_toy(), draft_toy()
    setting = SwitchConfig.parse("ead:threshold=2.0,window=3,dwell=2")
    strategy = Switching(role_of(draft), setting, size_ratio=0.25)
    stream = open_stream(target, PROMPT, GenerationConfig(max_new_tokens=30), strategy)
    write_stream(stream, ProgressBars(count_amount), ShowOptions(), is_silent=False)
    found = stream.result
    painted = "".join(
        f"{GREEN}{token} {PLAIN}" if origin == "draft" else f"{token} "
        for token, origin in zip(found.token_ids, found.origins, strict=True)
    )
    assert terminal.getvalue().rstrip() == painted.rstrip()
    err = capsys.readouterr().err
    share = found.switch["share_target"]
    assert 0 < share < 1
    assert f"{share:.1%} of the tokens from the target model" in err
    assert f"cost without catch-up {share + 0.25 * (1 - share):.2f} of the target" in err
    caught_up = sum(counts["n_caught_up"] for counts in found.switch["passes"].values())
    assert f"{caught_up} missed tokens caught up in" in err
    assert f"target {found.origins.count('target')}" in err


def test_nothing_is_reported_of_turns_that_were_never_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strategy = Switching(role_of(draft_toy()), SwitchConfig.parse("ead:threshold=2.0"))
    stream = open_stream(target_toy(), PROMPT, GenerationConfig(max_new_tokens=30), strategy)
    stream.stop()
    write_stream(stream, ProgressBars(count_amount), ShowOptions(), is_silent=False)
    err = capsys.readouterr().err
    assert "0 new tokens (cancelled)" in err
    assert "switches" not in err


def test_no_colours_unless_asked_for_nor_where_they_are_unwanted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert written(monkeypatch, io.StringIO(), show_drafts=True) == "one two three four\n"
    assert "lookup 1" in capsys.readouterr().err
    assert written(monkeypatch, Terminal()) == "one two three four\n"
    assert "origin" not in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    assert written(monkeypatch, Terminal(), show_drafts=True) == "one two three four\n"


def test_each_drafter_keeps_its_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    colours = OriginColours()
    painted = [colours.paint("x", name) for name in ("a", "b", "target", "a")]
    assert painted == [f"{GREEN}x{PLAIN}", f"{CYAN}x{PLAIN}", "x", f"{GREEN}x{PLAIN}"]


def test_explanations(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    written(monkeypatch, io.StringIO(), explain=True)
    assert capsys.readouterr().err.endswith("lookup: 1 round\noff: 1 round\n")
    written(monkeypatch, io.StringIO(), explain_rounds=True)
    rounds = "round 1: lookup\nround 2: off\n"
    assert rounds + "lookup: 1 round\noff: 1 round\n" in capsys.readouterr().err
    silent = open_stream(target_toy(), PROMPT, GenerationConfig(max_new_tokens=3))
    list(silent)
    assert explanation(silent) == ["the method plain decides nothing"]


def test_a_group_of_options_is_one_parameter() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Size:
        width: Annotated[int, typer.Option(min=1)] = 2
        height: int = 3

    found: list[Size] = []

    def verb(name: str, *, size: Size, loud: bool = False) -> None:
        found.append(size)

    # What `from __future__ import annotations` makes of names defined in a function.
    verb.__annotations__ |= {"name": str, "size": Size, "loud": bool}
    grouped: Callable[..., None] = takes_groups(verb)
    names = inspect.signature(grouped).parameters
    assert list(names) == ["name", "width", "height", "loud"]
    assert names["name"].default is inspect.Parameter.empty
    grouped(name="x", width=7, height=3, loud=True)
    assert found == [Size(width=7)]


def test_options_become_a_request() -> None:
    defaults = GenerationConfig(max_new_tokens=9, stop=("x",))
    assert options.RequestOptions().make_request(defaults) == dataclasses.replace(defaults, stop=())
    given = options.RequestOptions(
        max_new_tokens=5, temperature=0.5, logit_bias=["3=-1.5"], seed=2, stop_token=[4]
    )
    request = given.make_request(defaults)
    assert (request.max_new_tokens, request.seed, request.stop_token_ids) == (5, 2, (4,))
    assert request.sampling.temperature == 0.5
    assert request.sampling.logit_bias == {3: -1.5}
    with pytest.raises(ConfigError):
        options.RequestOptions(top_p=0.0).make_request(defaults)
