"""Several tries at one answer: which is chosen, and that each is the text it would be alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import edgedec
from edgedec import Engine
from edgedec.models.errors import ConfigError
from edgedec.runtime.drafting.stats import DecodeStats
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sampling.logprobs import TokenLogprob
from edgedec.runtime.search.answers import code_of, short_answer
from edgedec.runtime.search.best_of import (
    BestChoice,
    ByTests,
    Iterate,
    Likelihood,
    Vote,
    Weighted,
    choose_of,
    corrected,
    log_likelihood,
)
from edgedec.runtime.search.planned import Planned
from edgedec.system.sandbox.programs import Limits, run_program


def tried(text: str, *logs: float, ids: tuple[int, ...] | None = None) -> GenerationResult:
    """Returns a result of a text whose tokens have these log-probabilities."""
    tokens = tuple(hash(text) % 1000 + i for i in range(len(logs))) if ids is None else ids
    reported = tuple(TokenLogprob(token, log, ()) for token, log in zip(tokens, logs, strict=True))
    return GenerationResult(
        text, tokens, ("target",) * len(tokens), "stop", 3, 0.0, 1.0, 1.0, 1.0, "plain", True,
        DecodeStats(), logprobs=reported,
    )  # fmt: skip


TRIES = [
    tried("so it is 12", -1.0, -1.0),
    tried("it is 1,2 or 14", -0.1, -0.2),
    tried("The answer: 12.0", -3.0),
    tried("14 #### 12", -4.0),
]


def test_votes_are_counted_by_answer() -> None:
    choice = Vote().choose(TRIES)
    assert choice.answers == ("12", "14", "12", "12")
    assert choice.scores == (3, 1, 3, 3)
    assert choice.index == 0  # the likeliest of those with the most votes


def test_tries_that_were_cut_off_vote_only_among_themselves() -> None:
    cut = [replace(tried("1. 3 + 4", -0.1), finish_reason="length") for _ in range(3)]
    choice = Vote().choose([*cut, tried("12", -5.0)])
    assert choice.answers == (None, None, None, "12")
    assert choice.index == 3
    assert Vote().choose(cut).answers == ("4", "4", "4")


def test_a_tie_goes_to_the_likelier_answer() -> None:
    assert Vote().choose(TRIES[:2]).index == 1


def test_weights_are_probabilities_and_equal_paths_count_once() -> None:
    twice = [tried("1", -1.0, ids=(5,)), tried("1", -1.0, ids=(5,)), tried("2", -0.6, ids=(6,))]
    choice = Weighted().choose(twice)
    assert choice.answers[choice.index] == "2"
    assert Vote().choose(twice).index == 0
    different = [*twice[:1], tried("1", -1.1, ids=(7,)), twice[2]]
    assert Weighted().choose(different).index == 0  # e**-1 + e**-1.1 is more than e**-0.6


def test_weights_per_token_do_not_punish_length() -> None:
    tries = [tried("1", *[-0.2] * 10), tried("2", -0.5)]
    assert Weighted().choose(tries).index == 0


@pytest.mark.parametrize(
    ("n", "sizes"), [(1, [1]), (3, [1, 1, 1]), (8, [2, 2, 2, 2]), (9, [3, 2, 2, 2])]
)
def test_each_round_corrects_the_best_try_so_far(n: int, sizes: list[int]) -> None:
    rounds: list[tuple[str, int, int]] = []

    def make(prompt: object, first: int, stop: int) -> list[GenerationResult]:
        rounds.append((str(prompt), first, stop))
        return [tried(f"try {i}", -1.0 - i / 100) for i in range(first, stop)]

    def share(text: str) -> tuple[float, str]:
        return int(text[4:]) / 100, f"said of {text}"

    chosen = choose_of(make, "first", n, Iterate(share, lambda text, message: message))
    assert [stop - first for _, first, stop in rounds] == sizes
    assert [prompt for prompt, _, _ in rounds] == ["first"] + [
        f"said of try {first - 1}" for _, first, _ in rounds[1:]
    ]
    assert chosen.choice.index == n - 1


def test_no_round_follows_one_that_passes() -> None:
    rounds: list[int] = []

    def make(prompt: object, first: int, stop: int) -> list[GenerationResult]:
        rounds.append(first)
        return [tried(f"try {i}", -1.0) for i in range(first, stop)]

    iterate = Iterate(lambda text: (float(text == "try 3"), ""), lambda text, message: "again")
    assert choose_of(make, "first", 8, iterate).text == "try 3"
    assert rounds == [0, 2]


def test_the_next_round_sees_what_the_tests_say() -> None:
    asked: list[tuple[str, str]] = []

    def ask_again(text: str, message: str) -> str:
        asked.append((text, message))
        return "again"

    verdicts = {TRIES[0].text: (0.0, "assert f(1) == 2"), TRIES[1].text: (0.0, "assert f(2) == 3")}
    chooser = Iterate(verdicts.__getitem__, ask_again)
    assert chooser.follow_up(TRIES[:2]) == "again"
    assert asked == [(TRIES[1].text, "assert f(2) == 3")]  # the likelier of two that fail
    verdicts[TRIES[2].text] = (1.0, "")
    assert chooser.follow_up(TRIES[:3]) is None
    assert chooser.choose(TRIES[:3]).index == 2
    again = corrected([{"role": "user", "content": "Write f."}], "def f", "assert f(2) == 3")
    assert [message["role"] for message in again] == ["user", "assistant", "user"]
    assert "assert f(2) == 3" in again[2]["content"]


def test_no_answer_has_no_vote() -> None:
    choice = Vote().choose([tried("", -0.1), tried("7", -9.0)])
    assert (choice.index, choice.answers) == (1, (None, "7"))


def test_likelihood_takes_the_likeliest_text() -> None:
    assert Likelihood().choose(TRIES).index == 1


def test_tests_are_run_once_for_each_text() -> None:
    run: list[str] = []

    def passes(text: str) -> float:
        run.append(text)
        return float("good" in text)

    tries = [tried("bad", -0.1), tried("good", -5.0), tried("good", -5.0), tried("good!", -2.0)]
    assert ByTests(passes).choose(tries).index == 3
    assert run == ["bad", "good", "good!"]


@pytest.mark.parametrize(
    ("text", "answer"),
    [("  The  SKY is\nblue ", "the sky is blue"), ("$1,200.50", "1200.5"), ("", None), (" ", None),
     (r"so \boxed{-3} it is, 5", "-3"), ("1e3", "1000"), ("0", "0"), ("100", "100")],
)  # fmt: skip
def test_short_answers(text: str, answer: str | None) -> None:
    assert short_answer(text) == answer


def test_code_is_the_first_block() -> None:
    assert code_of("Here:\n```python\na = 1\n```\nand\n```\nb\n```") == "a = 1\n"
    assert code_of("```\nunfinished") == "unfinished"
    assert code_of("a = 1") == "a = 1"


@pytest.fixture(scope="module")
def engine(smollm2_bundle: Path) -> Iterator[Engine]:
    with edgedec.load(smollm2_bundle) as loaded:
        yield loaded


def test_tests_that_hang_are_ended() -> None:
    """The one try whose tests end wins, however busy the machine is."""
    seconds = {"import time; time.sleep(600)": 0.5, "while True: pass": 0.5, "pass": 60.0}

    def share(text: str) -> float:
        return float(run_program(text, Limits(seconds=seconds[text])).is_passed)

    choice = ByTests(share).choose([tried(text, -1.0) for text in seconds])
    assert choice.scores == (0.0, 0.0, 1.0)
    assert choice.index == 2


class Failing:
    def choose(self, tries: Sequence[GenerationResult]) -> BestChoice:
        raise OSError("the chooser went away")


def test_a_chooser_that_fails_costs_nothing_but_its_answer(engine: Engine) -> None:
    with pytest.raises(OSError, match="went away"):
        engine.best_of("One two", 3, Failing(), temperature=0.8, max_new_tokens=4)
    assert engine.best_of("One two", 2, "likelihood", temperature=0.8, max_new_tokens=4).text


def test_more_tries_than_memory_holds_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="n is 1000000000, expected at most 256"):
        engine.best_of("One two", 10**9, "vote", temperature=0.8, max_new_tokens=4)


@pytest.mark.e2e
def test_each_try_is_the_text_of_its_seed(engine: Engine) -> None:
    prompt = [{"role": "user", "content": "What is 7 plus 5?"}]
    settings = {"temperature": 0.8, "max_new_tokens": 12}
    done: list[int] = []
    found = engine.best_of(prompt, 5, "vote", on_progress=lambda i, _: done.append(i), seed=3,
                           **settings)  # type: ignore[arg-type]  # fmt: skip
    alone = [engine.generate(prompt, seed=3 + i, **settings) for i in range(5)]  # type: ignore[arg-type]
    assert [one.token_ids for one in found.tries] == [one.token_ids for one in alone]
    assert sorted(done) == list(range(5))
    assert found.text == found.tries[found.choice.index].text
    drafted = engine.best_of(prompt, 5, "likelihood", seed=3, method="lookup", **settings)  # type: ignore[arg-type]
    assert [one.token_ids for one in drafted.tries] == [one.token_ids for one in alone]


@pytest.mark.e2e
def test_rounds_of_a_model_are_made_from_the_best_so_far(engine: Engine) -> None:
    prompt = [{"role": "user", "content": "Say a word."}]
    done: list[int] = []
    chooser = Iterate(
        lambda text: (0.0, "too long"), lambda text, said: corrected(prompt, text, said)
    )
    found = engine.best_of(prompt, 3, chooser, on_progress=lambda i, _: done.append(i),
                           temperature=0.8, max_new_tokens=6)  # fmt: skip
    for i in (1, 2):
        best = max(found.tries[:i], key=log_likelihood)
        again = engine.generate(corrected(prompt, best.text, "too long"), temperature=0.8, seed=i,
                                max_new_tokens=6)  # fmt: skip
        assert found.tries[i].token_ids == again.token_ids
    assert sorted(done) == [0, 1, 2]
    passed = Iterate(lambda text: (1.0, ""), lambda text, said: prompt)
    assert len(engine.best_of(prompt, 3, passed, temperature=0.8, max_new_tokens=6).tries) == 1


@pytest.mark.e2e
def test_a_planned_search_goes_on_from_beginnings_as_the_model_would(engine: Engine) -> None:
    prompt = [{"role": "user", "content": "Name a colour."}]
    rewards: dict[str, float] = {}

    def share(text: str) -> float:
        return rewards.setdefault(text, 0.5 * (len(text) % 2))

    done: list[int] = []
    found = engine.best_of(prompt, 7, Planned(share), on_progress=lambda i, _: done.append(i),
                           max_new_tokens=8, stop="\n")  # fmt: skip
    assert sorted(done) == list(range(7))
    assert found.tries[0].text == engine.generate(prompt, max_new_tokens=8, stop="\n").text
    assert len({one.token_ids for one in found.tries}) == 7
    ids = engine.encode(prompt)
    for one in found.tries:
        n = sum(origin == "plan" for origin in one.origins)
        rest = engine.generate([*ids, *one.token_ids[:n]], max_new_tokens=8 - n)
        assert rest.token_ids[: len(one.token_ids) - n] == one.token_ids[n:]
        whole = engine.tokenizer.decode(list(one.token_ids)).partition("\n")[0]
        assert one.text == whole.removesuffix("<|im_end|>")
        assert len(one.logprobs) == len(one.token_ids)
    assert found.n_computed < sum(one.n_new_tokens for one in found.tries)
    assert found.choice.scores[found.choice.index] == max(found.choice.scores)


@pytest.mark.e2e
def test_a_planned_search_ends_with_what_passes(engine: Engine) -> None:
    first = engine.best_of("One two", 9, Planned(lambda text: 1.0), max_new_tokens=4)
    assert len(first.tries) == 1
    few = engine.best_of("One two", 9, Planned(lambda text: 0.0, max_tokens=5), max_new_tokens=4)
    assert 1 < len(few.tries) < 9
    with pytest.raises(ConfigError, match="leave out grammars"):
        engine.best_of("x", 2, Planned(lambda text: 0.0), regex="a+")


@pytest.mark.e2e
def test_what_makes_no_sense_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="all tries would be alike"):
        engine.best_of("x", 2)
    with pytest.raises(ConfigError, match="expected likelihood, vote, weighted"):
        engine.best_of("x", 2, "luck", temperature=1.0)
    with pytest.raises(ConfigError, match="n is 0"):
        engine.best_of("x", 0, temperature=1.0)
    assert len(engine.best_of("x", 1, max_new_tokens=2).tries) == 1


@pytest.mark.e2e
def test_a_chooser_that_fails_leaves_the_engine_whole(engine: Engine) -> None:
    class Failing:
        def choose(self, tries: object) -> Any:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        engine.best_of("One two", 3, Failing(), temperature=1.0, max_new_tokens=4)
    assert engine.generate("One two", max_new_tokens=4).n_new_tokens == 4
