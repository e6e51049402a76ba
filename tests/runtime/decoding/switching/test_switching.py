"""Switching at its edges: whose text it is, what the KV caches hold, what is reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.config.switching import SwitchConfig
from edgedec.runtime.decoding.switching.paired_model import PairedModel
from edgedec.runtime.decoding.switching.policy import ModelRole, Signal, make_policy
from edgedec.runtime.decoding.switching.rollback import surprise
from edgedec.runtime.decoding.switching.switching import Switching
from edgedec.runtime.engine.result import GenerationResult
from edgedec.runtime.sequences.passes import run_passes
from edgedec.runtime.sequences.token_tree import TokenTree

from ...conftest import ToySession
from ...draft_toys import (
    PROMPT,
    SAMPLINGS,
    VOCAB,
    StatsSession,
    ToyMask,
    check_sums,
    generate,
    open_stream,
)
from .replay import ReplayPolicy
from .switch_toys import GREEDY, SETTINGS, Row, draft_toy, role_of, rule, switched, target_toy


def request(sampling: SamplingConfig, n: int = 40) -> GenerationConfig:
    return GenerationConfig(max_new_tokens=n, seed=5, sampling=sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize(
    "setting", ["ead:threshold=inf", "margin:threshold=inf", "bild:fallback=0,mode=trust"]
)
def test_infinite_threshold_is_the_draft_model(setting: str, sampling: SamplingConfig) -> None:
    config = request(sampling)
    result, target, draft = switched(setting, config, copies=False)
    assert result.token_ids == generate(draft_toy(), PROMPT, config).token_ids
    assert set(result.origins) == {"draft"}
    assert target.n_rows == len(PROMPT)
    assert draft.n_rows == len(PROMPT) + 39
    assert not result.lossless


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("mode", ["trust", "repair", "verify"])
@pytest.mark.parametrize("setting", ["ead:threshold=-1", "margin:threshold=-1", "bild:fallback=2"])
def test_threshold_below_zero_is_the_target_model(
    setting: str, mode: str, sampling: SamplingConfig
) -> None:
    config = request(sampling)
    result, target, draft = switched(f"{setting},mode={mode}", config, copies=False)
    assert result.token_ids == generate(target_toy(), PROMPT, config).token_ids
    assert set(result.origins) == {"target"}
    assert target.n_rows == len(PROMPT) + 39
    assert setting.startswith("bild") or draft.n_rows == 0  # bild asks the draft model first


def test_models_differ() -> None:
    texts = [generate(toy(), PROMPT, GREEDY).token_ids for toy in (draft_toy, target_toy)]
    assert texts[0] != texts[1]


@pytest.mark.parametrize("setting", [*SETTINGS, "ead:threshold=inf", "ead:threshold=-1"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("is_masked", [False, True])
def test_verify_is_the_target_model(
    setting: str, sampling: SamplingConfig, is_masked: bool
) -> None:
    config = request(sampling)
    mask = ToyMask(VOCAB) if is_masked else None
    plain = generate(target_toy(), PROMPT, config, mask=mask)
    target = target_toy(kind=StatsSession)
    text = setting + ("," if ":" in setting else ":") + "mode=verify,max_run=6"
    result, _, _ = switched(text, config, target=target, mask=mask)
    assert (result.token_ids, result.finish_reason) == (plain.token_ids, plain.finish_reason)
    assert result.lossless
    check_sums(result)
    if "-1" not in setting:
        assert "draft" in result.origins
        assert result.stats.n_passes < 39


@settings(max_examples=80)
@given(
    sampling=st.sampled_from(SAMPLINGS),
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(["ead", "margin", "bild"]),
    threshold=st.floats(-0.5, 4.0),
    window=st.integers(1, 8),
    dwell=st.integers(1, 6),
    max_run=st.integers(1, 12),
    max_new_tokens=st.integers(1, 30),
    contexts=st.tuples(st.integers(8, 40), st.integers(6, 40)),
    vocab_size=st.integers(50, VOCAB),
    is_masked=st.booleans(),
    stop=st.sets(st.integers(0, VOCAB - 1), max_size=20),
)
@example(  # the target model goes on with what it looked up
    sampling=SamplingConfig(temperature=0.8, top_k=7), seed=119, policy="ead", threshold=0.0,
    window=1, dwell=2, max_run=1, max_new_tokens=9, contexts=(14, 6), vocab_size=50,
    is_masked=False, stop=set(),
)  # fmt: skip
def test_verify_whatever_the_limits(
    sampling: SamplingConfig,
    seed: int,
    policy: str,
    threshold: float,
    window: int,
    dwell: int,
    max_run: int,
    max_new_tokens: int,
    contexts: tuple[int, int],
    vocab_size: int,
    is_masked: bool,
    stop: set[int],
) -> None:
    config = GenerationConfig(
        max_new_tokens=max_new_tokens, seed=seed, sampling=sampling, stop_token_ids=tuple(stop)
    )
    mask = ToyMask(VOCAB) if is_masked else None
    plain = generate(target_toy(contexts[0]), PROMPT, config, mask=mask)
    if max(plain.token_ids) >= vocab_size:  # the draft model has no embedding for it
        vocab_size = VOCAB
    setting = SwitchConfig(
        policy=policy,
        threshold="auto" if policy == "bild" else threshold,
        window=window,
        dwell=dwell,
        max_run=max_run,
        mode="verify",
    )
    draft = draft_toy(contexts[1], vocab_size)
    result, _, _ = switched(setting, config, target_toy(contexts[0]), draft, mask)
    assert (result.token_ids, result.finish_reason) == (plain.token_ids, plain.finish_reason)
    check_sums(result)
    assert result.stats.n_discarded == 0 or stop


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("mode", ["trust", "repair", "verify"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_replay_gives_the_same_text(setting: str, mode: str, sampling: SamplingConfig) -> None:
    config = request(sampling, 60)
    result, _, _ = switched(f"{setting},mode={mode},rollback=1.5", config)
    assert result.switch["n_switches"] > 1
    log = json.loads(json.dumps(result.switch))  # as a file would keep it
    replay, _, _ = switched("ead:threshold=0", config, new_policy=lambda: ReplayPolicy.of(log))
    assert replay.token_ids == result.token_ids
    assert replay.origins == result.origins


@pytest.mark.parametrize("mode", ["trust", "repair", "verify"])
def test_the_policy_hears_of_every_row_that_the_target_model_says_a_token_by(mode: str) -> None:
    setting = f"ead:threshold=2.0,window=3,dwell=2,mode={mode}"
    policy, heard = make_policy(SwitchConfig.parse(setting)), list[tuple[ModelRole, float]]()
    observe = policy.observe

    def noted(model: ModelRole, signal: Signal) -> ModelRole:
        heard.append((model, signal.entropy))
        return observe(model, signal)

    policy.observe = noted  # type: ignore[method-assign]
    result, _, _ = switched(setting, GREEDY, copies=False, new_policy=lambda: policy)
    expected = []
    for i, tag in enumerate(result.origins, len(PROMPT)):
        row = rule(VOCAB, 0.0)([*PROMPT, *result.token_ids][:i]).astype(np.float64)
        log_probs = row - row.max() - np.log(np.exp(row - row.max()).sum())
        if tag == "target":
            expected.append(-(np.exp(log_probs) * log_probs).sum() / np.log(2))
    of_target = [entropy for model, entropy in heard if model is ModelRole.TARGET]
    assert of_target == pytest.approx(expected, rel=1e-4)
    assert len(expected) > 5


def judged(result: GenerationResult) -> list[tuple[str, float, bool]]:
    """Returns for each token its tag, the target model's -ln p, and whether it is its choice."""
    found, text = [], [*PROMPT, *result.token_ids]
    for i in range(len(PROMPT), len(text)):
        row = rule(VOCAB, 0.0)(text[:i]).astype(np.float64)
        total = np.log(np.exp(row - row.max()).sum()) + row.max()
        found.append(
            (result.origins[i - len(PROMPT)], total - row[text[i]], row.argmax() == text[i])
        )
    return found


@pytest.mark.parametrize("rollback", [0.0, 0.7, 2.0, 5.0, float("inf")])
@pytest.mark.parametrize("setting", ["bild:fallback=0.3", "ead:threshold=2.5,dwell=2"])
def test_repair_keeps_what_the_target_model_finds_possible(setting: str, rollback: float) -> None:
    result, _, _ = switched(f"{setting},mode=repair,rollback={rollback}", GREEDY)
    tokens = judged(result)
    assert all(is_choice for tag, _, is_choice in tokens if tag == "target")
    draft = [(nats, is_choice) for tag, nats, is_choice in tokens if tag == "draft"]
    assert all(nats <= rollback + 1e-4 or is_choice for nats, is_choice in draft)
    assert len(draft) > 5
    plain = generate(target_toy(), PROMPT, GREEDY).token_ids
    assert (result.token_ids == plain) == (rollback < 1)  # half the mass is surely its choice
    assert not result.lossless
    check_sums(result)


def test_bild_asks_the_target_model_where_the_draft_one_is_unsure() -> None:
    result, _, draft = switched("bild:fallback=0.5,mode=trust", GREEDY, copies=False)
    text = [*PROMPT, *result.token_ids]
    for i, tag in enumerate(result.origins, len(PROMPT)):
        row = rule(VOCAB, 2.0)(text[:i]).astype(np.float64)
        top_prob = 1 / np.exp(row - row.max()).sum()
        assert tag == ("target" if top_prob < 0.5 else "draft")
    assert result.switch["n_dropped"] == result.switch["n_target"] > 5
    assert draft.n_rows == len(text) - 1


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_token_is_computed_once_by_each_model_at_most(setting: str) -> None:
    result, target, draft = switched(f"{setting},mode=trust", GREEDY, copies=False)
    for session in (target, draft):
        assert session.n_rows == session.n_tokens <= len(PROMPT) + 59
        assert session.n_passes <= 60
    passes = result.switch["passes"]
    n_passes = {name: counts["n_steps"] + counts["n_catch_ups"] for name, counts in passes.items()}
    reported = result.switch
    assert n_passes["target"] == reported["n_target"]
    assert (
        n_passes["draft"] == reported["n_draft"] + reported["n_dropped"] - 1
    )  # that of the prompt
    n_computed = n_passes["target"] + passes["target"]["n_caught_up"]
    assert target.n_tokens == len(PROMPT) + n_computed


def looping(noise: float) -> Callable[[Sequence[int]], Row]:
    """Returns logits by the last token alone, so that texts repeat themselves."""

    @cache
    def row_after(token: int) -> Row:
        shared = np.random.default_rng([3, token]).standard_normal(VOCAB)
        own = np.random.default_rng([8, token]).standard_normal(VOCAB)
        return (6 * shared + noise * own).astype(np.float32)

    return lambda prefix: row_after(prefix[-1])


def log_of(result: GenerationResult) -> list[dict[str, object]]:
    """Returns the switch log without what the clock and the passes put into it."""
    return [
        {key: entry[key] for key in ("position", "to", "entropy", "level")}
        for entry in result.switch["log"]
    ]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("mode", ["trust", "repair", "verify"])
@pytest.mark.parametrize("setting", ["ead:threshold=inf", "ead:threshold=-1", *SETTINGS])
def test_looking_up_changes_nothing_but_the_passes(
    setting: str, mode: str, sampling: SamplingConfig
) -> None:
    found = {}
    for copies in (False, True):
        target = ToySession(VOCAB, 200, looping(0.0))
        draft = StatsSession(VOCAB, 150, looping(2.0))
        config = request(sampling, 150)
        result, _, _ = switched(f"{setting},mode={mode}", config, target, draft, copies=copies)
        found[copies] = result, draft.n_passes + target.n_passes
    (one_by_one, n_without), (copied, n_with) = found[False], found[True]
    assert copied.token_ids == one_by_one.token_ids
    assert copied.origins == one_by_one.origins
    if mode == "trust":  # elsewhere it decides where runs end, and so what is judged together
        assert log_of(copied) == log_of(one_by_one)
        assert copied.switch["n_dropped"] == one_by_one.switch["n_dropped"]
    assert one_by_one.switch["n_copied"] == 0
    assert n_with <= n_without
    if sampling.is_greedy and not sampling.has_penalties:
        assert copied.switch["n_copied"] > 4
        assert n_with < n_without


def test_a_text_that_repeats_itself_takes_few_passes() -> None:
    draft = StatsSession(VOCAB, 200, looping(0.0))
    target = ToySession(VOCAB, 200, looping(0.0))
    result, _, _ = switched("ead:threshold=inf", GREEDY, target, draft)
    assert result.switch["n_copied"] > 30
    assert draft.n_passes < 30
    counts = result.switch["passes"]["draft"]
    assert counts["n_caught_up"] == counts["n_catch_ups"] == 0  # nothing was missed


@pytest.mark.parametrize("setting", ["ead:threshold=inf", "ead:threshold=-1", SETTINGS[0]])
def test_what_a_stop_cuts_off_is_not_counted(setting: str) -> None:
    """Several tokens come at once; the caller may stop in the middle of them."""
    n_discarded = 0
    for n_pieces in range(20, 50):
        target = ToySession(VOCAB, 200, looping(0.0))
        draft = StatsSession(VOCAB, 200, looping(2.0))
        strategy = Switching(role_of(draft), SwitchConfig.parse(setting))
        stream = open_stream(target, PROMPT, GREEDY, strategy)
        for _ in range(n_pieces):
            next(stream)
        stream.stop()
        result = stream.result
        n_target = result.origins.count("target")
        assert len(result.origins) == n_pieces
        assert n_target == result.switch["n_target"]
        # The prompt's pass gave the first token, if that is the target model's.
        assert result.stats.n_pass_tokens == n_target - (result.origins[0] == "target")
        n_discarded += result.stats.n_discarded
    assert n_discarded > 5


@settings(max_examples=40)
@given(gap=st.integers(0, 200), n_rows=st.integers(1, 64), n_wrong=st.integers(0, 9))
def test_caught_up_rows_equal_those_of_a_session_that_saw_every_token(
    gap: int, n_rows: int, n_wrong: int
) -> None:
    text = [*PROMPT, *(np.random.default_rng(gap).integers(0, VOCAB, gap + n_rows).tolist())]
    session, fresh = target_toy(400), target_toy(400)
    wrong = [*PROMPT, *[1] * n_wrong]
    session.forward(TokenTree.chain(wrong), ())
    session.commit(range(len(wrong)))
    model = PairedModel(session, len(PROMPT))
    rows = run_passes(model.rows_after(text, n_rows)).logits
    expected = []
    for i, token in enumerate(text):
        row = fresh.forward(TokenTree.chain([token]), (0,)).logits[0]
        fresh.commit((0,))
        expected += [row] if i >= len(text) - n_rows else []
    np.testing.assert_array_equal(rows, expected)
    assert list(session.tokens) == text


def test_draft_context_hands_over_for_good() -> None:
    config = GenerationConfig(max_new_tokens=30)
    result, _, draft = switched("ead:threshold=inf", config, draft=draft_toy(context=16))
    assert result.origins == ("draft",) * 11 + ("target",) * 19
    assert draft.n_tokens == 16


def test_narrower_vocabulary() -> None:
    """A model of the same family may have fewer padding rows."""
    config = request(SamplingConfig(temperature=1.0, logit_bias={VOCAB - 1: 1.0}))
    result, _, _ = switched("ead:threshold=inf", config, draft=draft_toy(vocab_size=VOCAB - 5))
    assert max(result.token_ids) < VOCAB - 5
    with pytest.raises(ConfigError, match="the prompt holds token 15, expected 0 to 11"):
        switched("ead:threshold=inf", config, draft=draft_toy(vocab_size=12))


def test_surprise_is_in_nats_before_temperature() -> None:
    rows = ToySession(VOCAB).forward(TokenTree.chain(PROMPT), (5,))
    row = rows.logits[0].astype(np.float64)
    expected = -np.log(np.exp(row[4]) / np.exp(row).sum())
    assert surprise(rows, 0, 4) == pytest.approx(expected, rel=1e-5)


def test_output_is_json_and_explained() -> None:
    draft = draft_toy()
    strategy = Switching(role_of(draft), SwitchConfig.parse("ead:threshold=inf"))
    stream = open_stream(target_toy(), PROMPT, GREEDY, strategy)
    list(stream)
    result = stream.result
    assert "Infinity" not in json.dumps(result.to_dict())
    assert result.switch["cost_paper"] is None
    assert SwitchConfig.from_dict(result.switch["setting"]).threshold == float("inf")
    assert stream.explain()[0].startswith("ead:threshold=inf: 0 tokens from the target model, 60")
    decode_ms = result.ttft_ms + result.tpot_ms * (len(result.token_ids) - 1)
    assert 0 < result.switch["policy_ms"] < decode_ms
    strategy.close()
    assert not draft.is_closed  # others may draft with it
    strategy.draft.close()
    assert draft.is_closed
