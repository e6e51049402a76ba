"""Masks against languages small enough to write down, and outputs that have to fit schemas."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from edgedec.models.errors import ConfigError
from edgedec.runtime.config import GenerationConfig, SamplingConfig
from edgedec.runtime.decoding.planner import FixedPlanner
from edgedec.runtime.decoding.speculative import Speculative
from edgedec.runtime.drafting.drafter import Budget, DraftContext, DraftPrompt
from edgedec.runtime.drafting.drafters.grammar import GrammarDrafter
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.sampling.grammar import GrammarMask, Grammars
from edgedec.runtime.sampling.noise import Noise
from edgedec.runtime.text.tokenizer import Tokenizer

from ..conftest import ToyModel, ToySession, one_hot
from ..draft_toys import ToyDrafter, bush, check_sums, generate, half_right, right

pytest.importorskip("llguidance", reason="needs the extra grammar")

END = 2  # <|im_end|>
PROMPT = DraftPrompt([1])
STOPS = frozenset({END})
WORDS = ["text", "tex", "dog.", "do", "Größe", "日本語", "a", "ab", "abc", "12"]
LANGUAGES = {
    "regex": GenerationConfig(regex="|".join(word.replace(".", r"\.") for word in WORDS)),
    "json_schema": GenerationConfig(json_schema={"enum": WORDS}),
    "grammar": GenerationConfig(grammar="start: " + " | ".join(f'"{word}"' for word in WORDS)),
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["fox", "dog"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "awake": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "awake"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def members(kind: str) -> set[bytes]:
    """Returns all texts of a language of `LANGUAGES`."""
    is_json = kind == "json_schema"
    spelt = [json.dumps(word, ensure_ascii=False) if is_json else word for word in WORDS]
    return {text.encode() for text in spelt}


def spelt(tokenizer: Tokenizer, tokens: Iterable[int]) -> bytes:
    spellings = tokenizer.spellings()
    found = [spellings[token] for token in tokens]
    assert all(isinstance(part, bytes) for part in found)
    return b"".join(part for part in found if isinstance(part, bytes))


def search(tokenizer: Tokenizer, language: set[bytes], path: Iterable[int]) -> Any:
    """Returns by search which tokens may follow ``path``; None behind the end."""
    before = spelt(tokenizer, path)
    row = np.zeros(tokenizer.vocab_size, np.bool_)
    for token, spelling in tokenizer.spellings().items():
        if isinstance(spelling, bytes):
            row[token] = any(text.startswith(before + spelling) for text in language)
    if not row.any():
        return None
    row[END] = before in language
    return row


def check_row(tokenizer: Tokenizer, language: set[bytes], path: list[int], row: Any) -> None:
    """Asserts that ``row`` is what a search finds.

    Where the text leaves no choice, it may be one token of those that go on with it.
    """
    expected = search(tokenizer, language, path)
    if expected is None or row is None:
        assert row is expected, path
        return
    before = spelt(tokenizer, path)
    next_bytes = {text[len(before) :][:1] for text in language if text.startswith(before)}
    if len(next_bytes) == 1 and row.sum() == 1:
        assert expected[row].all(), path
    else:
        np.testing.assert_array_equal(row, expected, err_msg=str(path))


def mask_of(tokenizer: Tokenizer, request: GenerationConfig) -> GrammarMask:
    mask = Grammars(tokenizer, tokenizer.vocab_size).mask(request, STOPS)
    assert mask is not None
    mask.begin([5, 6, 7])
    return mask


@pytest.mark.parametrize("kind", LANGUAGES)
def test_rows_are_those_of_a_search_through_the_language(tokenizer: Tokenizer, kind: str) -> None:
    """All paths of up to three tokens, asked in an order that makes the mask walk to and fro."""
    mask, language = mask_of(tokenizer, LANGUAGES[kind]), members(kind)
    paths, level = [[]], [[]]
    for _ in range(3):
        rows = [(path, mask.row_after(path)) for path in level]
        level = [
            [*path, int(token)] for path, row in rows if row is not None
            for token in np.flatnonzero(row) if token != END
        ]  # fmt: skip
        paths += level
    assert len(paths) > 25
    for i in np.random.default_rng(0).permutation(len(paths)):
        check_row(tokenizer, language, paths[i], mask.row_after(paths[i]))


@pytest.mark.parametrize("kind", LANGUAGES)
def test_accepted_tokens_move_the_mask_along(tokenizer: Tokenizer, kind: str) -> None:
    language = members(kind)
    for seed in range(10):
        mask, path = mask_of(tokenizer, LANGUAGES[kind]), list[int]()
        rng = np.random.default_rng(seed)
        while not mask.is_finished:
            row = mask.row_after(())
            check_row(tokenizer, language, path, row)
            token = int(rng.choice(np.flatnonzero(row)))
            if rng.random() < 0.5:
                mask.row_after((token,) if token != END else ())
            mask.accept(token)
            if token == END:
                break
            path.append(token)
        assert spelt(tokenizer, path) in language
        assert mask.is_finished


def test_a_mask_begins_again(tokenizer: Tokenizer) -> None:
    mask = mask_of(tokenizer, LANGUAGES["regex"])
    first = mask.row_after(())
    mask.accept(tokenizer.encode("d")[0])
    assert not np.array_equal(mask.row_after(()), first)
    mask.begin([1])
    np.testing.assert_array_equal(mask.row_after(()), first)


def test_masks_of_one_grammar_do_not_share_their_place(tokenizer: Tokenizer) -> None:
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    one, other = (grammars.mask(LANGUAGES["regex"], STOPS) for _ in range(2))
    first = one.row_after(())
    one.accept(tokenizer.encode("d")[0])
    np.testing.assert_array_equal(other.row_after(()), first)


def test_ids_without_a_token_are_never_allowed(tokenizer: Tokenizer) -> None:
    n_ids = tokenizer.vocab_size + 37
    mask = Grammars(tokenizer, n_ids).mask(GenerationConfig(regex=r"(.|\n){1,9}"), STOPS)
    row = mask.row_after(())
    assert row.shape == (n_ids,)
    assert not row[tokenizer.vocab_size :].any()
    assert row.sum() > 200


class Doubled:
    """A tokenizer whose tokens are each there twice, the second time behind all others."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.encode = tokenizer.encode
        self._spellings = tokenizer.spellings()
        self.n_tokens = tokenizer.vocab_size

    def spellings(self) -> dict[int, bytes | str]:
        seconds = {self.n_tokens + token: text for token, text in self._spellings.items()}
        return {**self._spellings, **seconds}


def test_tokens_that_are_spelt_alike_are_allowed_alike(tokenizer: Tokenizer) -> None:
    doubled: Any = Doubled(tokenizer)
    n = doubled.n_tokens
    mask = Grammars(doubled, 2 * n).mask(LANGUAGES["regex"], STOPS)
    alone = mask_of(tokenizer, LANGUAGES["regex"])
    for token in tokenizer.encode("d"):
        row = mask.row_after(())
        np.testing.assert_array_equal(row[:n], alone.row_after(()))
        np.testing.assert_array_equal(row[:n], row[n:])
        assert row.any()
        mask.accept(n + token)
        alone.accept(token)
    np.testing.assert_array_equal(mask.row_after(())[:n], alone.row_after(()))


def test_the_latest_eight_grammars_stay_compiled(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    compile_it = Grammars._compile

    def watched(self: Grammars, kind: str, text: str) -> Any:
        compiled.append(text)
        return compile_it(self, kind, text)

    monkeypatch.setattr(Grammars, "_compile", watched)
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    for text in "abcdefghaib":  # a is used again before the ninth comes
        assert grammars.mask(GenerationConfig(regex=text), STOPS) is not None
    assert "".join(compiled) == "abcdefghib"


def test_after_a_stop_token_a_mask_begins_again(tokenizer: Tokenizer) -> None:
    mask = mask_of(tokenizer, GenerationConfig(regex="a*"))
    mask.accept(END)
    assert mask.is_finished
    mask.begin([1])
    assert not mask.is_finished


def fits(text: str) -> bool:
    """Whether ``text`` fits `SCHEMA`, checked by hand."""
    found = json.loads(text)
    return (
        list(found) == ["name", "age", "awake"]
        and found["name"] in ("fox", "dog")
        and type(found["age"]) is int
        and 0 <= found["age"] <= 120
        and len(found["awake"]) <= 2
        and all(type(item) is bool for item in found["awake"])
    )


@pytest.mark.parametrize("method", ["plain", "lookup+recycling", "grammar"])
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_random_model_writes_what_fits_the_schema(
    make_engine: Callable[..., Engine], method: str, temperature: float
) -> None:
    engine = make_engine(stop_token_ids=(END,))
    texts = set()
    for seed in range(6):
        sampling = SamplingConfig(temperature=temperature)
        request = GenerationConfig(
            sampling=sampling, seed=seed, json_schema=SCHEMA, method=method, max_new_tokens=150
        )
        result = engine.generate(f"tell me {seed}", request)
        assert result.finish_reason == "stop"
        assert fits(result.text)
        texts.add(result.text)
    assert temperature == 0 or len(texts) > 1


def test_the_end_of_the_grammar_ends_the_output_without_a_stop_token(
    make_engine: Callable[..., Engine],
) -> None:
    engine = make_engine(stop_token_ids=(END,))
    for request in (
        GenerationConfig(regex="ab?c", ignore_eos=True),
        GenerationConfig(regex="ab?c", ignore_eos=True, method="grammar"),
    ):
        result = engine.generate("x", request)
        assert result.text in ("ac", "abc")
        assert result.finish_reason == "stop"
        assert END not in result.token_ids


def test_a_stop_token_waits_until_the_output_is_complete(
    make_engine: Callable[..., Engine],
) -> None:
    n_ids = make_engine().model.vocab_size
    engine = make_engine(lambda prefix: one_hot(n_ids, END), stop_token_ids=(END,))
    result = engine.generate("x", GenerationConfig(regex="abc[0-9]*"))
    assert result.text == "abc"
    assert result.token_ids[-1] == END


@pytest.mark.parametrize("grow", [right, half_right, bush])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_drafts_change_nothing_under_a_grammar(
    tokenizer: Tokenizer, grow: Any, temperature: float
) -> None:
    grammars, n_ids = Grammars(tokenizer, tokenizer.vocab_size), tokenizer.vocab_size
    n_accepted = 0
    for seed in range(5):
        request = GenerationConfig(
            sampling=SamplingConfig(temperature=temperature), seed=seed, json_schema=SCHEMA,
            stop_token_ids=(END,), max_new_tokens=80,
        )  # fmt: skip
        prompt = [7, 8 + seed]
        plain = generate(ToySession(n_ids), prompt, request, mask=grammars.mask(request, STOPS))
        drafters = [ToyDrafter([*prompt, *plain.token_ids], grow, seed), GrammarDrafter()]
        strategy = Speculative(FixedPlanner(drafters, Budget(n_nodes=9, depth=6)))
        drafted = generate(
            ToySession(n_ids), prompt, request, strategy, grammars.mask(request, STOPS)
        )
        assert drafted.token_ids == plain.token_ids
        assert drafted.finish_reason == plain.finish_reason
        check_sums(drafted)
        n_accepted += drafted.stats.n_accepted
    assert n_accepted > 0


def test_the_drafter_proposes_what_is_forced(tokenizer: Tokenizer) -> None:
    mask = mask_of(tokenizer, GenerationConfig(regex="(fox jumps over the|dog and) [a-z]+"))
    mask.accept(tokenizer.encode("f")[0])
    context = DraftContext([1], 1, SamplingConfig(), Noise(0), mask)
    tree = GrammarDrafter().begin(PROMPT).propose(context, Budget(n_nodes=20, depth=20))
    assert len(tree) >= 3
    assert b"ox jumps over the".startswith(spelt(tokenizer, [node.token for node in tree.nodes]))
    short = GrammarDrafter().begin(PROMPT).propose(context, Budget(n_nodes=2, depth=9))
    assert [node.token for node in short.nodes] == [node.token for node in tree.nodes[:2]]
    without = DraftContext([1], 1, SamplingConfig(), Noise(0))
    assert len(GrammarDrafter().begin(PROMPT).propose(without, Budget(n_nodes=2, depth=9))) == 0


@pytest.mark.robustness
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"regex": "(ab"}, "regex is refused"),
        ({"grammar": "start: nothing"}, "grammar is refused"),
        ({"grammar": "start: ("}, "grammar is refused"),
        ({"json_schema": {"type": "potato"}}, "json_schema is refused"),
        ({"json_schema": "[1, 2]"}, "json_schema is refused"),
        ({"json_schema": {"type": "string", "enum": [1]}}, "json_schema is refused"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "json_schema is refused"),
        ({"json_schema": "{"}, "json_schema is not valid JSON"),
        ({"json_schema": 5}, "json_schema is 5"),
        ({"regex": 5}, "regex is 5"),
        ({"regex": ""}, "regex"),
        ({"regex": "a", "grammar": "b"}, "regex and grammar are given"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_runs(
    make_engine: Callable[..., Engine], fields: dict[str, Any], message: str
) -> None:
    model = ToyModel(330)
    engine = make_engine(model=model)
    with pytest.raises(ConfigError, match=r"^[^\n]*$") as caught:
        engine.generate("hello", GenerationConfig(**fields))
    assert message in str(caught.value)
    assert "<state>" not in str(caught.value)
    assert not str(caught.value).endswith("...")
    assert model.n_passes == 0


def test_a_long_reason_is_cut(make_engine: Callable[..., Engine]) -> None:
    name = "lowercase" * 60
    with pytest.raises(ConfigError, match=r"^grammar is refused: .{297}\.\.\.$"):
        make_engine().generate("hello", GenerationConfig(grammar=f"start: {name}"))


def test_a_missing_library_is_named(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ConfigError, match=r"pip install 'edgedec-runtime\[grammar\]'"):
        make_engine().generate("hello", GenerationConfig(regex="a"))


def test_tokens_that_were_not_allowed_end_in_an_error(tokenizer: Tokenizer) -> None:
    mask = mask_of(tokenizer, LANGUAGES["regex"])
    with pytest.raises(ConfigError, match="the grammar fails"):
        mask.row_after(tokenizer.encode("zzz"))


def test_accepting_a_token_keeps_what_is_known_behind_it(tokenizer: Tokenizer) -> None:
    mask = mask_of(tokenizer, GenerationConfig(regex="aab"))
    (a,) = tokenizer.encode("a")
    known = [mask.row_after([a] * n) for n in range(3)]
    assert all(row is not None for row in known)
    mask.accept(a)
    for n in (1, 0):
        np.testing.assert_array_equal(mask.row_after([a] * n), known[n + 1])


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (GenerationConfig(json_schema={"$ref": "#"}), r"\$ref: .* no finite value fits"),
        (GenerationConfig(regex=r"[^\s\S]"), "the grammar fails: no text fits"),
    ],
)
def test_what_no_text_fits_is_refused_in_plain_words(
    tokenizer: Tokenizer, request_: GenerationConfig, reason: str
) -> None:
    with pytest.raises(ConfigError, match=rf"^[a-z_]+ is refused: {reason}") as e:
        mask_of(tokenizer, request_)
    assert "state" not in str(e.value)


def texts_allowed(tokenizer: Tokenizer, schema: Any, text: str) -> bool:
    """Whether ``text`` may begin an output under ``schema``."""
    request = GenerationConfig(json_schema=schema)
    mask = Grammars(tokenizer, tokenizer.vocab_size).mask(request, STOPS)
    assert mask is not None
    for token in tokenizer.encode(text):
        row = mask.row_after(())
        if row is not None and not row[token]:
            return False
        mask.accept(token)
    return True


def test_white_space_under_a_schema_is_bounded(tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for text in ('{"a": 1}', '{"a":1}', '{\n  "a": 1\n}', '{\n\n\t"a": 1}'):
        assert texts_allowed(tokenizer, schema, text), text
    for text in ("{" + " " * 30, "{\n\n\n\n", '{"a":' + " " * 30):
        assert not texts_allowed(tokenizer, schema, text), text
    loose = {**schema, "x-guidance": {"whitespace_flexible": True}}
    assert texts_allowed(tokenizer, loose, "{" + " " * 30)
    strict = {**schema, "x-guidance": {"whitespace_flexible": False}}
    assert not texts_allowed(tokenizer, strict, "{\n")


REFUSED: list[tuple[Any, str]] = [
    ({"type": "object", "if": {"minProperties": 1}, "then": {"required": ["b"]}}, "if"),
    ({"type": "integer", "if": {"minimum": 3}, "else": {"maximum": 1}}, "else"),
    ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    ({"type": "array", "contains": {"const": 2}, "minContains": 20}, "minContains"),
    ({"type": "array", "contains": {"minimum": 2}, "maxContains": 2}, "maxContains"),
    ({"type": "object", "propertyNames": {"format": "date"}}, "propertyNames"),
    ({"type": "object", "anyOf": [{}], "unevaluatedProperties": False}, "unevaluatedProperties"),
    ({"type": "array", "contains": {}, "unevaluatedItems": False}, "unevaluatedItems"),
    ({"$dynamicAnchor": "n", "$dynamicRef": "#n"}, r"\$dynamic"),
    ({"type": "integer", "not": {"multipleOf": 2}}, "not"),
    ({"oneOf": [{"type": "integer"}, {"type": "number", "minimum": 1}]}, "oneOf"),
    ({"type": "string", "format": "iri"}, "format: iri"),
    ({"type": "string", "format": "regex"}, "format: regex"),
    ({"type": "string", "pattern": "^(?!a)"}, "pattern"),
    ({"type": "string", "pattern": r"^(a)\1"}, "pattern"),
    ({"type": "object", "patternProperties": {"^(?=a)": {}}}, "pattern"),
    ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}},
     "uniqueItems"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "keyword"), REFUSED)
def test_a_refused_schema_names_the_keyword_and_the_lenient_way(
    tokenizer: Tokenizer, schema: dict[str, Any], keyword: str
) -> None:
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    with pytest.raises(ConfigError, match=rf"{keyword}.*x-guidance.*lenient"):
        grammars.mask(GenerationConfig(json_schema=schema), STOPS)
    lenient = {**schema, "x-guidance": {"lenient": True}}
    assert grammars.mask(GenerationConfig(json_schema=lenient), STOPS) is not None


@pytest.mark.parametrize(
    "schema", [{"$ref": "https://example.com/s.json"}, {"$ref": "#/$defs/none"}, {"enum": []}]
)
def test_no_lenient_way_is_named_where_there_is_none(
    tokenizer: Tokenizer, schema: dict[str, Any]
) -> None:
    grammars = Grammars(tokenizer, tokenizer.vocab_size)
    with pytest.raises(ConfigError, match=r"^json_schema is refused: .*; change the schema$") as e:
        grammars.mask(GenerationConfig(json_schema=schema), STOPS)
    assert ("$ref: " in str(e.value)) is ("$ref" in schema)
