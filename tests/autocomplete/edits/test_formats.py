"""Prompts of models made for edits, against those that other code built.

`recorded_prompts.json` has texts, 200 cases of changes and a cursor, and 12 characters of the
SHA-256 of each prompt that the reference made of it. That is the publisher's own code for Instinct
(Continue's `core/nextEdit`, in Node) and the second version of Sweep (the package
`sweep-autocomplete` 0.1.1). For Zeta it is a public fork of Zed's crate `zeta_prompt`, compiled.
For the first version of Sweep it is our own port of the prompt that Sweep published.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from edgedec.autocomplete import Document
from edgedec.autocomplete.edits import Edit, EditConfig, EditPredictor
from edgedec.autocomplete.edits.changes import EditHistory
from edgedec.autocomplete.edits.edit_prompt import EditContext, special_token
from edgedec.autocomplete.edits.formats import FORMATS
from edgedec.autocomplete.edits.instinct import instinct_text
from edgedec.autocomplete.edits.marks import MarkReader
from edgedec.autocomplete.edits.rewriting import Rewriting
from edgedec.autocomplete.edits.seed_coder import region_starts, zeta2_parts, zeta21_parts
from edgedec.autocomplete.edits.sweep import sweep2_parts, sweep_parts
from edgedec.autocomplete.edits.window import line_of, window_at
from edgedec.autocomplete.edits.zeta import zeta_text
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine

from ...runtime.conftest import Row, ToyModel, one_hot

RECORDED = json.loads((Path(__file__).parent / "recorded_prompts.json").read_text("utf-8"))
TEXTS = [*RECORDED["texts"], ["long.txt", "".join(f"value_{i} = {i}\n" for i in range(900))]]
N_DIGITS = 12

BUILDERS: dict[str, Callable[[EditContext], str]] = {
    "sweep": lambda context: "".join(sweep_parts(context)),
    "sweep-2": lambda context: "".join(sweep2_parts(context)),
    "zeta": zeta_text,
    "zeta-2": lambda context: "".join(zeta2_parts(context)),
    "zeta-2.1": lambda context: "".join(zeta21_parts(context)),
    "instinct": instinct_text,
}


def contexts(format_name: str, line_end: str = "\n") -> Iterator[EditContext]:
    """Yields what each recorded case shows of its document."""
    maker: Any = FORMATS[format_name]
    edit_format = object.__new__(maker)  # its window depends on no engine
    for number, edits, row, column in RECORDED["cases"]:
        name, text = TEXTS[number]
        lines, history = text.split("\n"), EditHistory()
        history.see(Document(text, 0, name))
        for start, n_removed, new in edits:
            lines[start : start + n_removed] = new
            history.see(Document("\n".join(lines), 0, name))
        before = [*lines[:row], lines[row][:column]]
        document = Document(line_end.join(lines), len(line_end.join(before)), name)
        n_lines, n_above = edit_format.n_lines, edit_format.n_above
        window = edit_format.window(document, line_of(document), n_lines, n_above)
        yield EditContext(document, window, history.changes)


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("line_end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_prompts_are_those_of_the_reference(name: str, line_end: str) -> None:
    """Models see line feeds, whatever ends the lines of a document."""
    recorded = RECORDED["sha256"][name]
    prompts = [BUILDERS[name](context) for context in contexts(name, line_end)]
    digests = [hashlib.sha256(text.encode()).hexdigest()[:N_DIGITS] for text in prompts]
    known = [recorded[i : i + N_DIGITS] for i in range(0, len(recorded), N_DIGITS)]
    assert len(known) == 200
    assert [
        i for i, pair in enumerate(zip(digests, known, strict=True)) if len(set(pair)) > 1
    ] == []


def test_each_trained_format_is_compared() -> None:
    assert set(FORMATS) == {*BUILDERS, "instruction"}


LINES = [f"line {i}" for i in range(40)]
LINES[17] = ""
DOCUMENT = Document("\n".join(LINES), 0, "a.py")
WINDOW = window_at(DOCUMENT, 0, 40, 0, 0)
STARTS = region_starts(WINDOW)
MARKS = {f"<|marker_{i}|>": start for i, start in enumerate(STARTS, 1)}


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        ("<|marker_1|><|marker_1|>", LINES),
        (
            "<|marker_2|>one\ntwo\n<|marker_3|>",
            [*LINES[: STARTS[1]], "one", "two", *LINES[STARTS[2] :]],
        ),
        (
            "<|marker_1|>one\n<|marker_2|>two\n<|marker_3|>",
            ["one", "two", *LINES[STARTS[2] :]],
        ),
        ("<|marker_3|>one<|marker_4|>", [*LINES[: STARTS[2]], "one"]),
        (
            "<|marker_2|>o<|user_cursor|>ne\n<|marker_3|>",
            [*LINES[: STARTS[1]], "one", *LINES[STARTS[2] :]],
        ),
        ("<|marker_3|>one\n<|marker_2|>", None),
        ("<|marker_2|>one\n", None),
        ("one\ntwo\n", None),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_between_numbered_marks(answer: str, lines: list[str] | None, size: int) -> None:
    """What Zed's function `apply_marker_span_v0318` makes of these answers, or an error."""
    rewriting = Rewriting(WINDOW, {**MARKS, "<|user_cursor|>": None})
    for at in range(0, len(answer), size):
        rewriting.read(answer[at : at + size], 0.0)
    assert rewriting.finish(0.0) == (lines is not None)
    if lines is not None:
        assert [line.text for line in rewriting._lines] == lines


def test_a_mark_that_only_begins_is_text() -> None:
    reader = MarkReader({"<|end|>": None, "<|end|": None})
    assert "".join(map(str, reader.read("a<|e"))) == "a"
    assert "".join(map(str, reader.read("x<|"))) == "<|ex"
    assert reader.finish() == "<|"


END = "<[end▁of▁sentence]>"
SEED_CODER = ("<[fim-suffix]>", "<[fim-prefix]>", "<[fim-middle]>", "<filename>", END)
BEFORE = "def area(width):\n    a = 1\n    b = 2\n    return width\n"
NOW = BEFORE.replace("(width)", "(w)")
AFTER = NOW.replace("return width", "return w")


@pytest.fixture
def asked(
    make_filling: Callable[..., Engine],
) -> Callable[[str, str, str], tuple[Edit | None, int]]:
    """Returns what asks a model for an edit of NOW that follows BEFORE.

    The model has one answer behind the last special token. The second value counts its passes.
    """

    def ask(name: str, answer: str, now: str) -> tuple[Edit | None, int]:
        engine = make_filling(*SEED_CODER)
        codec, model = engine.tokenizer, engine.model
        assert isinstance(model, ToyModel)
        middle = special_token(codec, "<[fim-middle]>")
        end = special_token(codec, END)

        def rule(prefix: Sequence[int]) -> Row:
            tokens = list(prefix)
            read = codec.decode(tokens[len(tokens) - tokens[::-1].index(middle) :])
            rest = answer[len(read) :] if answer.startswith(read) else ""
            token = codec.encode(rest)[0] if rest else end
            row: Row = one_hot(model.vocab_size, token) * 9.0
            return row

        model.rule = rule
        with EditPredictor(engine, EditConfig(format=name)) as predictor:
            predictor.see(Document(BEFORE, 0, "a.py"))
            future = predictor.update(Document(now, len("def area(w"), "a.py"))
            return future.result(timeout=60), model.n_passes

    return ask


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("zeta-2", f"{AFTER}>>>>>>> UPDATED\n"),
        ("zeta-2", f"{AFTER.replace('w)', 'w<|user_cursor|>)')}>>>>>>> UPDATED\n"),
        ("zeta-2.1", f"<|marker_1|>{AFTER}<|marker_2|>"),
    ],
)
def test_answers_become_edits(asked: Any, name: str, answer: str) -> None:
    edit, _ = asked(name, answer, NOW)
    assert edit is not None
    assert edit.applied(NOW) == AFTER


@pytest.mark.parametrize(
    ("name", "mark"),
    [("zeta-2", "=======\n"), ("zeta-2", "<|user_cursor|>"), ("zeta-2.1", "<|marker_1|>")],
)
def test_code_with_marks_of_the_format_is_not_asked_about(asked: Any, name: str, mark: str) -> None:
    edit, n_passes = asked(name, f"{AFTER}>>>>>>> UPDATED\n", f"{NOW}\n{mark}")
    assert (edit, n_passes) == (None, 0)


def test_special_tokens_of_the_text_are_text(make_filling: Callable[..., Engine]) -> None:
    engine = make_filling("<|file_sep|>")
    mark = special_token(engine.tokenizer, "<|file_sep|>")
    counts = []
    for text in (NOW, NOW.replace("a = 1", "a = '<|file_sep|>'")):
        document = Document(text, 0, "a.py")
        window = window_at(document, 0, 21, 0, 0)
        prompt = FORMATS["sweep"](engine).prompt(EditContext(document, window))
        counts.append(list(prompt.tokens).count(mark))
    assert counts == [3, 3]


def test_a_model_without_the_tokens_is_refused(make_filling: Callable[..., Engine]) -> None:
    with pytest.raises(ConfigError, match=r"needs a model whose tokenizer has .*fim-suffix"):
        FORMATS["zeta-2"](make_filling())
    with (
        pytest.raises(ConfigError, match="n_lines of edits is 5, expected none"),
        EditPredictor(make_filling(*SEED_CODER), EditConfig(format="zeta-2", n_lines=5)),
    ):
        pass
