"""The engine over toy sessions: what it emits, when it stops, and what it computes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgedec.models.errors import SessionError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.engine.conversation import keep_generated
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sequences.prefill import PREFILL_CHUNK
from edgedec.runtime.text.tokenizer import Tokenizer

from ..conftest import Row, ToyModel, one_hot

MakeEngine = Callable[..., Engine]
USER = [{"role": "user", "content": "The quick brown fox"}]


def toy(engine: Engine) -> ToyModel:
    assert isinstance(engine.model, ToyModel)
    return engine.model


def held(engine: Engine) -> list[int]:
    """Returns the tokens of the sequence that the latest finished request left."""
    with engine.borrowed(()) as sequence:
        return list(sequence.tokens)


def reciting(tokenizer: Tokenizer, text: str, then: int = 2) -> Callable[[Sequence[int]], Row]:
    """Returns a rule that recites ``text`` after each assistant header, then says ``then``."""
    script = [*tokenizer.encode(text), then]
    header = [1, *tokenizer.encode("assistant\n")]

    def rule(prefix: Sequence[int]) -> Row:
        for n_said in range(len(script)):
            asked = list(prefix[: len(prefix) - n_said])
            if asked[-len(header) :] == header and prefix[len(asked) :] == script[:n_said]:
                return one_hot(tokenizer.vocab_size, script[n_said])
        return one_hot(tokenizer.vocab_size, then)

    return rule


def test_greedy_is_deterministic_and_follows_the_rows(make_engine: MakeEngine) -> None:
    config = GenerationConfig(max_new_tokens=20)
    engine = make_engine()
    result = engine.generate("fox", config)
    assert result.token_ids == make_engine().generate("fox", config).token_ids
    tokens = list(engine.tokenizer.encode("fox"))
    for token in result.token_ids:
        assert token == int(toy(engine)._random_row(tokens).argmax())
        tokens.append(token)
    assert result.finish_reason == "length"
    assert result.text == engine.tokenizer.decode(result.token_ids)


def test_seed_decides_the_text(make_engine: MakeEngine) -> None:
    def run(seed: int) -> tuple[int, ...]:
        sampling = SamplingConfig(temperature=1.5, top_p=0.95, repetition_penalty=1.1)
        config = GenerationConfig(max_new_tokens=20, seed=seed, sampling=sampling)
        return make_engine().generate("fox", config).token_ids

    assert run(3) == run(3) != run(4)


def test_pieces_join_to_the_text(make_engine: MakeEngine) -> None:
    sampling = SamplingConfig(temperature=1.0)
    stream = make_engine().stream("fox", GenerationConfig(max_new_tokens=60, sampling=sampling))
    pieces = list(stream)
    assert "".join(pieces) == stream.text == stream.result.text
    assert all(pieces)
    assert next(stream, None) is None


def test_stats_add_up(make_engine: MakeEngine) -> None:
    engine = make_engine()
    result = engine.generate("The quick brown fox", GenerationConfig(max_new_tokens=7))
    stats = result.stats
    assert stats.n_prefill_tokens + stats.n_reused_tokens == result.n_prompt_tokens
    assert stats.n_passes == stats.n_pass_tokens == result.n_new_tokens - 1 == 6
    assert stats.block_efficiency == 1.0
    assert stats.acceptance_rate == 0.0
    assert stats.n_rounds == stats.n_correction + stats.n_bonus == 0
    assert toy(engine).n_rows == stats.n_prefill_tokens + stats.n_passes
    assert len(held(engine)) == result.n_prompt_tokens + result.n_new_tokens - 1


def test_json_has_the_documented_keys(make_engine: MakeEngine) -> None:
    document = (
        make_engine(load_ms=4.0).generate("fox", GenerationConfig(max_new_tokens=3)).to_dict()
    )
    assert list(document) == [
        "text", "reasoning", "token_ids", "origins", "finish_reason", "stop_text", "stop_token",
        "n_prompt_tokens", "n_new_tokens", "n_reasoning_tokens", "load_ms", "ttft_ms",
        "provisional_ms", "tpot_ms", "tokens_per_s", "peak_rss_mb", "method", "lossless",
        "largest_gap", "stats", "switch",
    ]  # fmt: skip
    assert document["method"] == "plain"
    assert document["lossless"] is True
    assert document["switch"] == {}
    assert document["load_ms"] == 4.0
    assert document["ttft_ms"] > 0 < document["tpot_ms"]
    assert json.loads(json.dumps(document)) == document


def test_stop_token_ends_and_is_listed(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    engine = make_engine(reciting(tokenizer, "lazy dog."), stop_token_ids=(2,))
    result = engine.generate(USER)
    assert (result.text, result.finish_reason) == ("lazy dog.", "stop")
    assert result.token_ids == (*tokenizer.encode("lazy dog."), 2)


def test_ignore_eos_goes_on_but_keeps_the_callers_stops(
    make_engine: MakeEngine, tokenizer: Tokenizer
) -> None:
    engine = make_engine(reciting(tokenizer, "lazy"), stop_token_ids=(2,))
    result = engine.generate(USER, GenerationConfig(max_new_tokens=30, ignore_eos=True))
    assert (result.n_new_tokens, result.finish_reason) == (30, "length")
    config = GenerationConfig(max_new_tokens=30, ignore_eos=True, stop_token_ids=(2,))
    assert engine.generate(USER, config).finish_reason == "stop"


def test_stop_text(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    engine = make_engine(reciting(tokenizer, "over the lazy dog"), stop_token_ids=(2,))
    result = engine.generate(USER, GenerationConfig(stop=("zy d", "cat")))
    assert (result.text, result.finish_reason) == ("over the la", "stop")


def test_possible_stop_text_at_the_end_is_emitted(
    make_engine: MakeEngine, tokenizer: Tokenizer
) -> None:
    engine = make_engine(reciting(tokenizer, "over the la"), stop_token_ids=(2,))
    stream = engine.stream(USER, GenerationConfig(stop=("lazy",)))
    assert "".join(stream) == "over the la" == stream.result.text


def test_stop_keeps_the_cache(make_engine: MakeEngine) -> None:
    engine = make_engine()
    stream = engine.stream("fox", GenerationConfig(max_new_tokens=50))
    next(stream)
    next(stream)
    stream.stop()
    assert list(stream) == []
    result = stream.result
    assert result.finish_reason == "cancelled"
    assert 2 <= result.n_new_tokens < 50
    assert len(held(engine)) == result.n_prompt_tokens + result.n_new_tokens - 1


def test_cancel_drops_the_turn(make_engine: MakeEngine) -> None:
    engine = make_engine()
    engine.generate("The quick", GenerationConfig(max_new_tokens=1))
    kept = held(engine)
    stream = engine.stream("The quick brown fox", GenerationConfig(max_new_tokens=50))
    next(stream)
    stream.cancel()
    assert stream.result.finish_reason == "cancelled"
    assert held(engine) == kept[: len(held(engine))]
    assert len(held(engine)) >= len(kept) - 1
    untouched = engine.stream("lazy dog")
    untouched.cancel()
    assert len(held(engine)) >= len(kept) - 1


def test_unfinished_stream_has_no_result(make_engine: MakeEngine) -> None:
    stream = make_engine().stream("fox")
    with pytest.raises(SessionError, match="not finished"):
        _ = stream.result


def test_new_stream_leaves_the_old_one_alone(make_engine: MakeEngine) -> None:
    engine, config = make_engine(), GenerationConfig(max_new_tokens=5)
    old = engine.stream("fox", GenerationConfig(max_new_tokens=50))
    next(old)
    new = engine.generate("dog", config)
    assert not old.is_finished
    list(old)
    alone = make_engine().generate("fox", GenerationConfig(max_new_tokens=50))
    assert old.result.token_ids == alone.token_ids
    assert new.token_ids == make_engine().generate("dog", config).token_ids


def test_a_conversation_stops_its_own_unfinished_answer(make_engine: MakeEngine) -> None:
    conversation = make_engine().conversation()
    old = conversation.send("fox", GenerationConfig(max_new_tokens=50))
    next(old)
    conversation.send("dog")
    assert old.result.finish_reason == "cancelled"
    assert list(old) == []


def test_prefill_is_chunked_watched_and_cancelled_between_chunks(make_engine: MakeEngine) -> None:
    engine = make_engine(context=1000)
    prompt = [(7 * i) % 300 for i in range(3 * PREFILL_CHUNK + 5)]
    seen: list[tuple[str, int, int]] = []
    patient = GenerationConfig(max_new_tokens=1, prefill_pass_ms=1e6)
    engine.generate(prompt, patient, lambda *report: seen.append(report))
    n = len(prompt)
    assert seen == [("prefill", min(n, (i + 1) * PREFILL_CHUNK), n) for i in range(4)]
    assert toy(engine).n_passes == 4
    engine.forget_prompts()
    stream = engine.stream(prompt, patient, lambda phase, done, total: stream.stop())
    assert list(stream) == []
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.n_new_tokens == 0
    assert held(engine) == prompt[:PREFILL_CHUNK]


def test_common_prefix_is_reused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    one = GenerationConfig(max_new_tokens=1)
    prompt = list(range(10, 60))
    engine.generate(prompt, one)
    n_rows = toy(engine).n_rows
    result = engine.generate([*prompt[:40], *range(100, 105)], one)
    assert toy(engine).n_rows - n_rows == result.stats.n_prefill_tokens == 5
    assert result.stats.n_reused_tokens == 40
    again = engine.generate([*prompt[:40], *range(100, 105)], one)
    assert again.stats.n_prefill_tokens == 0
    assert again.token_ids == result.token_ids
    shorter = engine.generate(prompt[:20], one)
    assert shorter.stats.n_prefill_tokens == 1
    assert shorter.token_ids == make_engine().generate(prompt[:20], one).token_ids


def test_conversation_reuses_its_turns(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    engine = make_engine(reciting(tokenizer, "lazy dog."), stop_token_ids=(2,))
    conversation = engine.conversation(system="text")
    first = conversation.send("fox")
    assert "".join(first) == "lazy dog."
    second = conversation.send("the lines")
    list(second)
    assert [message["role"] for message in conversation.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    n_before = first.result.n_prompt_tokens + first.result.n_new_tokens - 1
    assert second.result.stats.n_reused_tokens == n_before
    whole = make_engine().generate(
        list(conversation.messages[:4]), GenerationConfig(max_new_tokens=1)
    )
    assert whole.n_prompt_tokens == second.result.n_prompt_tokens


def test_generated_spelling_is_kept(tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode("fox")
    canonical = tokenizer.encode("lazy dog")
    letters = [token for letter in "lazy dog" for token in tokenizer.encode(letter)]
    assert letters != canonical
    end, rest = 2, tokenizer.encode("the lines")
    encoded = [*prompt, *canonical, end, *rest]
    kept = [*prompt, *letters, end, *rest]
    assert keep_generated(encoded, prompt, [*letters, end], tokenizer) == kept
    assert keep_generated(encoded, prompt, letters, tokenizer) == kept
    other = tokenizer.encode("over the")
    for answer in ([*other, end], [*letters, *other], []):
        assert keep_generated(encoded, prompt, answer, tokenizer) == encoded
    assert keep_generated(encoded, rest, letters, tokenizer) == encoded


def test_conversation_stop_and_cancel(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    engine = make_engine(reciting(tokenizer, "over the lazy dog"), stop_token_ids=(2,))
    conversation = engine.conversation()
    stream = conversation.send("fox")
    said = next(stream)
    stream.stop()
    assert conversation.messages[-1] == {"role": "assistant", "content": said}
    dropped = conversation.send("dog")
    next(dropped)
    dropped.cancel()
    assert len(conversation.messages) == 2
    assert "".join(conversation.send("dog")) == "over the lazy dog"
    assert [m["content"] for m in conversation.messages[::2]] == ["fox", "dog"]


def test_prompt_longer_than_the_context_says_both_numbers(make_engine: MakeEngine) -> None:
    engine = make_engine(context=32)
    with pytest.raises(SessionError, match="the prompt has 33 tokens, the context 32: "):
        engine.generate([5] * 33)
    assert toy(engine).n_passes == 0


@pytest.mark.parametrize("n_prompt", [20, 31, 32])
def test_context_fills_up(make_engine: MakeEngine, n_prompt: int) -> None:
    engine = make_engine(context=32)
    result = engine.generate([5] * n_prompt, GenerationConfig(max_new_tokens=99))
    assert result.finish_reason == "context"
    assert result.n_prompt_tokens + result.n_new_tokens == 33
    assert len(held(engine)) == 32


@pytest.mark.parametrize("error", [KeyboardInterrupt, SessionError])
@pytest.mark.parametrize("i_pass", [0, 1, 4])
def test_interrupted_pass_leaves_everything_usable(
    make_engine: MakeEngine, error: type[BaseException], i_pass: int
) -> None:
    config = GenerationConfig(max_new_tokens=12)
    engine = make_engine()
    model = toy(engine)

    def interrupt() -> None:
        if model.n_passes == i_pass:
            raise error

    model.before_pass = interrupt
    stream = engine.stream("The quick brown fox", config)
    with pytest.raises(error):
        list(stream)
    model.before_pass = lambda: None
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.n_new_tokens == i_pass
    tokens = engine.tokenizer.encode("The quick brown fox") + list(stream.result.token_ids)
    assert held(engine) == tokens[: len(held(engine))]
    after = engine.generate("The quick brown fox", config)
    assert after.token_ids == make_engine().generate("The quick brown fox", config).token_ids


def test_stop_from_another_thread(make_engine: MakeEngine) -> None:
    engine = make_engine(context=4096)
    model, entered, is_stopped = toy(engine), threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        assert is_stopped.wait(60)

    model.before_pass = hold
    stream = engine.stream("fox", GenerationConfig(max_new_tokens=4000))
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    assert entered.wait(60)
    stream.stop()
    is_stopped.set()
    thread.join(timeout=60)
    assert not thread.is_alive()
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.n_new_tokens < 4000


def test_busy_conversation_and_engine_refuse(make_engine: MakeEngine) -> None:
    engine = make_engine()
    conversation = engine.conversation()

    def intrude() -> None:
        for call in (lambda: conversation.send("dog"), engine.close):
            with pytest.raises(SessionError, match="busy"):
                call()

    stream = conversation.send("fox", GenerationConfig(max_new_tokens=2))
    toy(engine).before_pass = intrude
    list(stream)
    assert stream.result.n_new_tokens == 2
    assert toy(engine).n_passes == 2


def test_closed_engine(make_engine: MakeEngine) -> None:
    with make_engine() as engine:
        model = toy(engine)
        stream = engine.stream("fox")
        next(stream)
    assert model.is_closed
    assert stream.result.finish_reason == "cancelled"
    with pytest.raises(SessionError, match="closed"):
        engine.generate("fox")
    engine.close()


def test_penalties_reach_the_rows(make_engine: MakeEngine, tokenizer: Tokenizer) -> None:
    def rule(prefix: Sequence[int]) -> Row:
        return np.linspace(0, 1, tokenizer.vocab_size, dtype=np.float32)

    sampling = SamplingConfig(presence_penalty=2.0)
    result = make_engine(rule).generate(
        "fox", GenerationConfig(max_new_tokens=5, sampling=sampling)
    )
    last = tokenizer.vocab_size - 1
    assert result.token_ids == tuple(range(last, last - 5, -1))
