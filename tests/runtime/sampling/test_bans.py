"""Repeated n-grams, bad words, early ends and beginnings are forbidden as transformers does."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from edgedec import ConfigError, GenerationConfig, SamplingConfig
from edgedec.runtime.sampling.bans import Bans, Both
from edgedec.runtime.sampling.token_mask import TokenMask

V, STOPS = 16, frozenset([2, 5])


def forbidden(mask: TokenMask, path: tuple[int, ...] = ()) -> set[int]:
    row = mask.row_after(path)
    return set() if row is None else set(np.flatnonzero(~row).tolist())


def begun(prompt: list[int], **settings: Any) -> Bans:
    bans = Bans(SamplingConfig(**settings), V, STOPS)
    bans.begin(prompt)
    return bans


@pytest.mark.parity
@pytest.mark.parametrize("seed", range(12))
def test_the_same_as_transformers(seed: int) -> None:
    torch = pytest.importorskip("torch", reason="needs the dev extra")
    transformers = pytest.importorskip("transformers", reason="needs the dev extra")
    rng = random.Random(seed)
    size, least = rng.randint(1, 4), rng.randint(1, 6)
    words = [[rng.randrange(V) for _ in range(rng.randint(1, 3))] for _ in range(6)]
    first = rng.sample(range(V), 3)
    prompt = [rng.randrange(6) for _ in range(rng.randint(1, 9))]
    processors = [
        transformers.NoRepeatNGramLogitsProcessor(size),
        transformers.NoBadWordsLogitsProcessor(words, sorted(STOPS)),
        transformers.MinNewTokensLengthLogitsProcessor(len(prompt), least, sorted(STOPS)),
        transformers.SuppressTokensAtBeginLogitsProcessor(first, len(prompt)),
    ]
    bans = begun(
        prompt, no_repeat_ngram_size=size, min_new_tokens=least, bad_words_ids=words,
        begin_suppress_tokens=first,
    )  # fmt: skip
    accepted: list[int] = []
    for _ in range(12):
        path = tuple(rng.randrange(6) for _ in range(rng.randint(0, 4)))
        ids, row = torch.tensor([[*prompt, *accepted, *path]]), torch.zeros((1, V))
        for processor in processors:
            row = processor(ids, row)
        assert forbidden(bans, path) == set(np.flatnonzero(row[0].numpy() == -np.inf).tolist())
        accepted.append(rng.randrange(6))
        bans.accept(accepted[-1])


def test_by_hand() -> None:
    assert forbidden(begun([7, 8, 9, 7, 8], no_repeat_ngram_size=3)) == {9}
    assert forbidden(begun([7, 8], no_repeat_ngram_size=3), (9, 7, 8)) == {9}
    assert forbidden(begun([7, 8, 7], no_repeat_ngram_size=1)) == {7, 8}
    assert forbidden(begun([1, 3], bad_words_ids=[[4], [3, 6], [2]])) == {4, 6}
    assert forbidden(begun([1], min_new_tokens=2), (7,)) == {2, 5}
    assert forbidden(begun([1], min_new_tokens=2), (7, 7)) == set()
    assert forbidden(begun([1], begin_suppress_tokens=[9])) == {9}
    assert forbidden(begun([1], begin_suppress_tokens=[9]), (3,)) == set()


def test_when_nothing_more_is_forbidden() -> None:
    bans = begun([1], min_new_tokens=2, begin_suppress_tokens=[9])
    seen = [bans.is_free]
    for _ in range(2):
        bans.accept(7)
        seen.append(bans.is_free)
    assert seen == [False, False, True]
    assert not begun([1], no_repeat_ngram_size=2).is_free


def test_a_grammar_decides_where_both_leave_nothing() -> None:
    grammar = begun([1], bad_words_ids=[[token] for token in range(V) if token != 2])
    both = Both(grammar, begun([1], min_new_tokens=3))
    assert forbidden(both) == set(range(V)) - STOPS


@pytest.mark.parametrize(
    "settings",
    [
        {"no_repeat_ngram_size": -1}, {"min_new_tokens": 1.5}, {"bad_words_ids": [[]]},
        {"bad_words_ids": "damn"}, {"bad_words_ids": [["x"]]}, {"begin_suppress_tokens": [-1]},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        SamplingConfig(**settings)


def test_ids_beyond_the_vocabulary() -> None:
    request = GenerationConfig(sampling=SamplingConfig(bad_words_ids=((3, 99),)))
    with pytest.raises(ConfigError, match="bad_words_ids names token 99"):
        request.check_vocabulary(90)


def test_a_bundle_forbids_in_greedy_texts_too() -> None:
    fields = {"do_sample": False, "temperature": 0.7, "no_repeat_ngram_size": 3}
    sampling = GenerationConfig.from_bundle({**fields, "bad_words_ids": [[4, 5]]}).sampling
    assert sampling.is_greedy
    assert (sampling.no_repeat_ngram_size, sampling.bad_words_ids) == (3, ((4, 5),))
