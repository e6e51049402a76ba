"""Two tokenizers: what they share, and one text in the tokens of both."""

from __future__ import annotations

import json
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from edgedec.models.errors import ConfigError
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.token_map import DraftText, TokenMap, spellings
from edgedec.runtime.text.tokenizer import Tokenizer

CORPUS = [
    "the cat sat on the mat and the hat",
    "a cat, a mat, a hat",
    "for i in range(10): print(i)",
]
OTHER_CORPUS = ["the dog ate the fog for lunch", "while x < 10: x += 1", "naïve 日本 🙂 日本"]


def byte_level(corpus: list[str], special: tuple[str, ...], size: int) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(corpus, trainer)
    return made


def sentence_piece(corpus: list[str]) -> tokenizers.Tokenizer:
    """Returns a tokenizer in the manner of Llama 2: blanks as U+2581, bytes as <0x..>."""
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<unk>"], initial_alphabet=[], show_progress=False
    )
    made.train_from_iterator(corpus, trainer)
    document = json.loads(made.to_str())
    vocabulary = document["model"]["vocab"]
    for piece in pieces:
        vocabulary[piece] = len(vocabulary)
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def spelt(tokenizer: tokenizers.Tokenizer) -> dict[int, Any]:
    return dict(spellings(json.loads(tokenizer.to_str())))


TARGET = byte_level(CORPUS, ("<|end|>", "<|turn|>"), 320)
DRAFT = byte_level(OTHER_CORPUS, ("<|pad|>", "<|end|>"), 310)
PIECES = sentence_piece(OTHER_CORPUS)
TO_DRAFT = TokenMap.between(spelt(TARGET), spelt(DRAFT), DRAFT.get_vocab_size())
TO_PIECES = TokenMap.between(spelt(TARGET), spelt(PIECES), PIECES.get_vocab_size())


def encoded(text: str) -> list[int]:
    return list(TARGET.encode(text).ids)


def with_gaps() -> tokenizers.Tokenizer:
    """Returns a tokenizer whose ids leave some out, with added tokens that are not special."""
    document = json.loads(TARGET.to_str())
    vocabulary = document["model"]["vocab"]
    moved = {piece: token if token < 290 else token + 50 for piece, token in vocabulary.items()}
    document["model"]["vocab"] = moved
    made = tokenizers.Tokenizer.from_str(json.dumps(document))
    made.add_tokens(["<|plain|>", "naïve"])
    return made


def unigram() -> tokenizers.Tokenizer:
    pieces = [("<unk>", 0.0), ("▁the", -1.0), ("▁", -2.0), ("a", -3.0), ("<0x0A>", -4.0)]
    made = tokenizers.Tokenizer(models.Unigram(pieces, 0, byte_fallback=True))
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    made.add_special_tokens(["<s>"])
    return made


@pytest.mark.parametrize("backend", [TARGET, DRAFT, PIECES, with_gaps(), unigram()])
def test_spellings_are_those_of_the_file(backend: tokenizers.Tokenizer) -> None:
    found = dict(Tokenizer(backend).spellings())
    assert found == spelt(backend)
    assert len(found) > 5


@pytest.mark.parametrize("other", [DRAFT, PIECES], ids=["byte level", "pieces"])
def test_shared_tokens_are_spelt_alike(other: tokenizers.Tokenizer) -> None:
    token_map = TO_DRAFT if other is DRAFT else TO_PIECES
    target, draft = spelt(TARGET), spelt(other)
    shared = [(i, name) for i, name in enumerate(token_map.names.tolist()) if name >= 0]
    assert len(shared) > 100
    for draft_id, name in shared:
        assert draft[draft_id] == target[name]
    alone = {draft[i] for i, name in enumerate(token_map.names.tolist()) if name < 0 and i in draft}
    assert alone.isdisjoint(target.values())
    assert alone  # otherwise nothing was tested


def test_special_tokens_meet_by_their_text() -> None:
    end = DRAFT.token_to_id("<|end|>")
    assert TO_DRAFT.names[end] == TARGET.token_to_id("<|end|>")
    assert TO_DRAFT.names[DRAFT.token_to_id("<|pad|>")] == -1
    assert TO_DRAFT.read([TARGET.token_to_id("<|end|>")]) == [end]
    # One the draft does not have is read as ordinary text.
    turn = TO_DRAFT.read([TARGET.token_to_id("<|turn|>")])
    assert DRAFT.decode(turn) == "<|turn|>"


@settings(max_examples=200)
@given(text=st.text(max_size=30))
def test_a_text_reads_the_same_in_the_drafts_tokens(text: str) -> None:
    text = text.encode("utf-8", "ignore").decode()
    assert DRAFT.decode(TO_DRAFT.read(encoded(text))) == TARGET.decode(encoded(text))
    assert PIECES.decode(TO_PIECES.read(encoded(text))) == TARGET.decode(encoded(text))


def test_shared_tokens_are_read_as_themselves() -> None:
    for i, name in enumerate(TO_DRAFT.names.tolist()):
        if name >= 0:
            assert TO_DRAFT.read([name]) == [i]


tokens = st.lists(st.integers(0, TARGET.get_vocab_size() - 1), max_size=12)


@settings(max_examples=200)
@given(texts=st.lists(st.tuples(tokens, st.integers(0, 12)), max_size=8))
def test_draft_text_follows_any_change(texts: list[tuple[list[int], int]]) -> None:
    followed, text = DraftText(TO_DRAFT), list[int]()
    for added, n_kept in texts:
        text = text[:n_kept] + added
        assert followed.follow(text) == TO_DRAFT.read(text)


@given(a=st.lists(st.integers(0, 2)), b=st.lists(st.integers(0, 2)))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_heads_that_know_some_tokens() -> None:
    head = [i for i, name in enumerate(TO_DRAFT.names.tolist()) if name >= 0][5:50:7]
    head.append(DRAFT.token_to_id("<|pad|>"))
    head.sort()
    token_map = TokenMap.between(spelt(TARGET), spelt(DRAFT), DRAFT.get_vocab_size(), head)
    assert token_map.draft_ids.tolist() == head
    assert token_map.names.tolist() == [TO_DRAFT.names[i] for i in head]


def test_same_tokenizer() -> None:
    token_map = TokenMap.same(target_size=8, draft_size=10, head_ids=[1, 4, 9])
    assert token_map.names.tolist() == [1, 4, -1]  # the target's embedding has no row 9
    assert token_map.draft_ids.tolist() == [1, 4, 9]
    narrow = TokenMap.same(target_size=10, draft_size=8)
    assert narrow.names.tolist() == list(range(8))
    assert narrow.read([3, 9, 4]) == [3, 4]


def test_nothing_in_common() -> None:
    with pytest.raises(ConfigError, match="shares no token"):
        TokenMap.between({0: b"a", 1: "<s>"}, {0: b"b", 1: "<s>"}, 2)
