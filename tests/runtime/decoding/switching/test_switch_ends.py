"""Switching that is stopped, cancelled, interrupted, or left idle."""

from __future__ import annotations

import pytest

from edgedec.runtime.config import GenerationConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.switching import Switching

from ...draft_toys import (
    PROMPT,
    generate,
    open_stream,
)
from .switch_toys import GREEDY, SETTINGS, draft_toy, role_of, switched, target_toy


@pytest.mark.parametrize("mode", ["trust", "repair", "verify"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("n_pieces", [0, 1, 7])
@pytest.mark.parametrize("is_dropped", [False, True])
def test_cancelling_leaves_both_sessions_rewound(
    mode: str, setting: str, n_pieces: int, is_dropped: bool
) -> None:
    target, draft = target_toy(), draft_toy()
    strategy = Switching(role_of(draft), SwitchConfig.parse(f"{setting},mode={mode}"))
    stream = open_stream(target, PROMPT, GREEDY, strategy)
    for _ in range(n_pieces):
        next(stream)
    if is_dropped:
        stream.cancel()
    else:
        stream.stop()
    text = [*PROMPT, *stream.result.token_ids]
    for session in (target, draft):
        assert list(session.tokens) == text[: session.n_tokens]
    assert len(stream.result.token_ids) == n_pieces
    switch = stream.result.switch
    if n_pieces:
        assert switch["n_draft"] + switch["n_target"] == n_pieces
    else:
        assert switch == {}  # the method never began
    assert (
        generate(target, PROMPT, GREEDY, strategy).token_ids
        == switched(f"{setting},mode={mode}", GREEDY)[0].token_ids
    )


@pytest.mark.parametrize("mode", ["trust", "repair", "verify"])
@pytest.mark.parametrize("setting", ["ead:threshold=inf", "ead:threshold=-1", SETTINGS[0]])
def test_idle_time_is_for_catching_up(setting: str, mode: str) -> None:
    target, draft = target_toy(context=90), draft_toy(context=50)
    strategy = Switching(role_of(draft), SwitchConfig.parse(f"{setting},mode={mode}"))
    stream = open_stream(target, PROMPT, GREEDY, strategy)
    next(stream)
    assert stream.catch_up() == 0  # nobody is idle yet
    list(stream)
    reported, text = stream.result.switch, [*PROMPT, *stream.result.token_ids]
    missed = len(text) - target.n_tokens + 50 - draft.n_tokens
    assert missed > 0
    n_rows = target.n_rows + draft.n_rows
    assert stream.catch_up() == missed
    assert target.n_rows + draft.n_rows == n_rows + missed
    assert list(target.tokens) == text
    assert list(draft.tokens) == text[:50]
    assert stream.catch_up() == 0
    assert stream.result.switch == reported
    longer = [*text, 3, 1]
    config = GenerationConfig(max_new_tokens=9)
    found = generate(target, longer, config, strategy).token_ids
    anew = Switching(role_of(draft_toy(context=50)), SwitchConfig.parse(f"{setting},mode={mode}"))
    assert found == generate(target_toy(context=90), longer, config, anew).token_ids


@pytest.mark.parametrize("n_pieces", [0, 3])
def test_nothing_is_caught_up_of_what_was_dropped(n_pieces: int) -> None:
    target, draft = target_toy(), draft_toy()
    strategy = Switching(role_of(draft), SwitchConfig.parse("ead:threshold=inf"))
    generate(target, PROMPT, GREEDY, strategy)
    stream = open_stream(target, PROMPT[:3], GREEDY, strategy)
    for _ in range(n_pieces):
        next(stream)
    stream.cancel()
    n_rows = target.n_rows + draft.n_rows
    assert stream.catch_up() == 0
    assert target.n_rows + draft.n_rows == n_rows


@pytest.mark.parametrize("mode", ["trust", "verify"])
@pytest.mark.parametrize("victim", ["target", "draft"])
def test_interrupt_in_a_pass_leaves_both_sessions_rewound(mode: str, victim: str) -> None:
    sessions = {"target": target_toy(), "draft": draft_toy()}
    strategy = Switching(
        role_of(sessions["draft"]), SwitchConfig.parse(f"{SETTINGS[0]},mode={mode}")
    )
    stream = open_stream(sessions["target"], PROMPT, GREEDY, strategy)
    for _ in range(9):
        next(stream)

    def interrupt() -> None:
        raise KeyboardInterrupt

    sessions[victim].before_pass = interrupt
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    text = [*PROMPT, *stream.result.token_ids]
    for session in sessions.values():
        assert list(session.tokens) == text[: session.n_tokens]


def test_a_stop_in_the_middle_of_a_run_is_not_counted() -> None:
    plain = generate(target_toy(), PROMPT, GREEDY)
    stop = f"{plain.token_ids[20]} "
    config = GenerationConfig(max_new_tokens=60, stop=(stop,))
    result, _, _ = switched("ead:threshold=inf,mode=verify,max_run=30", config)
    expected = generate(target_toy(), PROMPT, config)
    assert (result.text, result.finish_reason) == (expected.text, "stop")
    assert result.switch["n_draft"] + result.switch["n_target"] == len(result.token_ids)
