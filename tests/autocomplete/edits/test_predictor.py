"""Edits, predicted by a model that knows by heart how a window is to be rewritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import edgedec
from edgedec.autocomplete import Document
from edgedec.autocomplete.edits import Edit, EditConfig, EditPredictor
from edgedec.autocomplete.edits.changes import Change
from edgedec.autocomplete.edits.edit_prompt import EditContext
from edgedec.autocomplete.edits.instruction import InstructionFormat
from edgedec.autocomplete.edits.quiet import is_related
from edgedec.autocomplete.edits.sweep import SweepFormat
from edgedec.autocomplete.edits.window import window_at
from edgedec.models.errors import ConfigError, SessionError
from edgedec.runtime.engine.engine import Engine

from ...runtime.conftest import Row, ToyModel, one_hot

MARK = "<|file_sep|>"
BEFORE = "def area(width):\n    a = 1\n    b = 2\n    return width\n"
NOW = BEFORE.replace("(width)", "(w)")
AFTER = NOW.replace("return width", "return w")
CURSOR = len("def area(w")
SWEEP = EditConfig(format="sweep")
Make = Callable[..., Engine]


@pytest.fixture
def make(make_filling: Make) -> Make:
    """Returns a maker of engines whose models answer windows with a text, or by a rule."""

    def make_engine(answer: str | Callable[[str], str], sureness: float = 9.0) -> Engine:
        engine = make_filling(MARK)
        codec, model = engine.tokenizer, engine.model
        assert isinstance(model, ToyModel)
        mark = next(i for i in range(codec.vocab_size) if codec.named([i]) == MARK)

        def rule(prefix: Sequence[int]) -> Row:
            tokens = [-1, *prefix]
            marks = [i for i, token in enumerate(tokens) if token == mark] or [0]
            window, read = (
                codec.decode(tokens[start + 1 : end]).partition("\n")[2]
                for start, end in ((marks[-2:][0], marks[-1]), (marks[-1], len(tokens)))
            )
            whole = answer if isinstance(answer, str) else answer(window)
            rest = whole[len(read) :] if whole.startswith(read) else ""
            token = codec.encode(rest)[0] if rest else mark
            row: Row = one_hot(codec.vocab_size, token) * sureness
            return row

        model.rule = rule
        return engine

    return make_engine


def predict(
    engine: Engine, *texts: str, config: EditConfig = SWEEP, cursor: int = 0
) -> Edit | None:
    with EditPredictor(engine, config) as predictor:
        predictor.see(Document(texts[0], 0, "a.py"))
        for text in texts[1:]:
            found = predictor.update(Document(text, cursor, "a.py"))
        return found.result(timeout=60)


def test_the_edit_that_follows_is_offered(make: Make) -> None:
    edit = predict(make(AFTER), BEFORE, NOW, cursor=CURSOR)
    assert edit is not None
    assert edit.applied(NOW) == AFTER
    assert (edit.line, NOW[edit.jump :]) == (3, "idth\n")
    assert edit.probability > 0.5


def test_only_the_first_of_two_changes_is_offered(make: Make) -> None:
    before = BEFORE + "\n\nx = 1\ny = 2\nprint(area(width=3))\n"
    now = before.replace("(width):", "(w):")
    answer = now.replace("return width", "return w").replace("width=3", "w=3")
    edit = predict(make(answer), before, now, cursor=CURSOR)
    assert edit is not None
    assert edit.applied(now) == now.replace("return width", "return w")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (NOW, "nothing follows"),
        (NOW.replace("    a", "        a"), "white space alone"),
        (BEFORE, "what was just written is taken back"),
        (BEFORE.replace("    a = 1", "\n    a = 1"), "it is taken back, with an empty line"),
        (NOW.replace("(w)", "(wide)"), "the word in the making"),
        (NOW.replace("return width", "return w")[:-2], "see below"),
    ],
)
def test_quiet(make: Make, answer: str, why: str) -> None:
    edit = predict(make(answer), BEFORE, NOW, cursor=CURSOR)
    if why == "see below":  # a last line that lacks its end is a line all the same
        assert edit is not None
        return
    assert edit is None, why


def test_without_a_change_nothing_is_asked(make: Make) -> None:
    engine = make(AFTER)
    assert predict(engine, NOW, NOW) is None
    assert isinstance(engine.model, ToyModel)
    assert engine.model.n_passes == 0


def test_what_is_unlikely_is_not_offered(make: Make) -> None:
    config = EditConfig(format="sweep", min_probability=1.0)
    assert predict(make(AFTER, 0.4), BEFORE, NOW, config=config, cursor=CURSOR) is None


def test_what_was_dismissed_is_not_offered_again(make: Make) -> None:
    with EditPredictor(make(AFTER), SWEEP) as predictor:
        predictor.see(Document(BEFORE, 0, "a.py"))
        edit = predictor.update(Document(NOW, CURSOR, "a.py")).result(timeout=60)
        assert edit is not None
        predictor.dismiss(edit)
        assert predictor.update(Document(NOW, 0, "a.py")).result(timeout=60) is None


def test_line_ends_stay_as_they_are(make: Make) -> None:
    crlf = (text.replace("\n", "\r\n").removesuffix("\r\n") for text in (BEFORE, NOW, AFTER))
    before, now, after = crlf
    edit = predict(make(AFTER), before, now, cursor=CURSOR)
    assert edit is not None
    assert edit.applied(now) == after


def test_a_place_far_away_is_looked_at_next(make: Make) -> None:
    far = "\n".join(f"line = {i}" for i in range(40)) + "\n"
    before, now = BEFORE + far + "print(width)\n", BEFORE.replace("width", "w") + far
    now += "print(width)\n"
    engine = make(lambda window: window.replace("print(width)", "print(w)"))
    config = EditConfig(format="sweep", n_lines=5)
    edit = predict(engine, before, now, config=config, cursor=CURSOR)
    assert edit is not None
    assert edit.applied(now) == now.replace("print(width)", "print(w)")


def test_a_newer_state_ends_the_prediction(make: Make) -> None:
    with EditPredictor(make(AFTER), SWEEP) as predictor:
        predictor.see(Document(BEFORE, 0, "a.py"))
        first = predictor.update(Document(NOW.replace("w", "v", 1), CURSOR, "a.py"))
        edit = predictor.update(Document(NOW, CURSOR, "a.py")).result(timeout=60)
        assert first.cancelled() or first.done()
        assert edit is not None


def test_a_closed_one_and_settings_that_cannot_be_are_refused(
    make: Make,
) -> None:
    predictor = EditPredictor(make(AFTER), SWEEP)
    predictor.close()
    with pytest.raises(SessionError, match="closed"):
        predictor.update(Document(NOW, 0, "a.py"))
    with pytest.raises(
        ConfigError, match="'sweeping', expected one of instruction, sweep, sweep-2, zeta"
    ):
        EditConfig(format="sweeping")
    with pytest.raises(ConfigError, match="no chat template"):
        EditPredictor(make(AFTER))


CHANGE = Change("a.py", 0, ("def area(width):",), ("def area(w):",), (), ("    a = 1",))


@pytest.mark.parametrize(
    ("before", "now", "answer", "after"),
    [
        ("a = 1\nb = 2", "a = 3\nb = 2", "a = 3\nb = 2\nc = 3\n", "a = 3\nb = 2\nc = 3"),
        ("a = 1\nb = 2\nc = 2", "a = 3\nb = 2\nc = 2", "a = 3\nb = 2\n", "a = 3\nb = 2"),
        ("a\x0bz\nb = 2\n", "a\x0by\nb = 2\n", "a\x0by\nb = 3\n", None),
        ("a = 1\rb = 2\r", "a = 3\rb = 2\r", "a = 3\nb = 3\n", "a = 3\rb = 3\r"),
    ],
    ids=["behind the last line", "the last line goes", "separators in lines", "carriage returns"],
)
def test_lines_at_the_end_and_odd_ones(
    make: Make, before: str, now: str, answer: str, after: str | None
) -> None:
    edit = predict(make(answer), before, now)
    assert edit is not None
    assert edit.applied(now) == (answer if after is None else after)


def test_a_pause_ends_it(make: Make) -> None:
    with EditPredictor(make(AFTER), SWEEP) as predictor:
        predictor.see(Document(BEFORE, 0, "a.py"))
        first = predictor.update(Document(NOW, CURSOR, "a.py"))
        predictor.pause()
        assert first.done()
        assert predictor.update(Document(NOW, CURSOR, "a.py")).result(timeout=60) is not None


LINES = [f"value_{i} = {i}\n" for i in range(24)]
TEXT = "".join(LINES)
EDITED = TEXT.replace("value_3 = 3", "value_3 = 4")


@pytest.mark.parametrize(
    "answer",
    ["".join(LINES[2:6]), "x = 1\n" * 3 + "".join(LINES[12:]), "x" * 5000],
    ids=["it broke off", "another text", "cut by the limit"],
)
def test_an_answer_that_is_not_the_window_is_no_edit(make: Make, answer: str) -> None:
    config = EditConfig(format="sweep", min_probability=0)
    cursor = EDITED.index("4\nvalue_4")
    assert predict(make(answer), TEXT, EDITED, config=config, cursor=cursor) is None


def test_what_is_left_out_at_the_end_is_as_likely_as_the_end(make: Make) -> None:
    config = EditConfig(format="sweep", min_probability=0)
    edit = predict(make(NOW.replace("    return width\n", ""), 0.4), BEFORE, NOW, config=config)
    assert edit is not None
    assert 0 < edit.probability < 0.5


@pytest.mark.parametrize(
    ("near", "first"), [("print(width)\n", 15), ("print(height)\n", 18)], ids=["name", "none"]
)
def test_a_window_begins_where_the_old_name_stands(
    make: Make, monkeypatch: pytest.MonkeyPatch, near: str, first: int
) -> None:
    monkeypatch.setattr(SweepFormat, "n_above", 2)
    above = "".join([*LINES[:15], near, *LINES[16:20]])
    with EditPredictor(make(AFTER), SWEEP) as predictor:
        predictor.see(Document(above + BEFORE, 0, "a.py"))
        now = Document(above + NOW, len(above) + CURSOR, "a.py")
        predictor.see(now)
        assert next(predictor._windows(now, ())).first == first


def test_instructions_begin_the_answer_near_the_old_name_and_fence_it_off(
    small_bundle: Path,
) -> None:
    with edgedec.load(small_bundle) as engine:
        texts = []
        for fence in ("", "```\n"):
            document = Document(f"a = 1\n\n\n\n\n\n{fence}{NOW}", 0, "a.py")
            window = window_at(document, 0, 21, 5, 2)
            change = replace(CHANGE, line=6 + bool(fence))
            prompt = InstructionFormat(engine).prompt(EditContext(document, window, [change]))
            assert prompt.opening + prompt.prediction == window.text + prompt.stop[0]
            texts.append((prompt.opening, prompt.stop, engine.tokenizer.decode(prompt.tokens)))
    (opening, stop, text), (_, long, fenced) = texts
    above = "def area(w):\n    a = 1\n    b = 2\n"
    assert (opening, stop, long) == (f"a = 1\n\n\n\n\n\n{above}", ("```",), ("````",))
    assert text.endswith(f"```python\n\n\n\n\n\n{above}")
    assert fenced.endswith(f"````python\n\n\n\n\n```\n{above}")


@pytest.mark.parametrize(
    ("before", "after", "old", "new", "is_so"),
    [
        ("f(width)", "f(w)", "return width", "return w", True),
        ("f(width)", "f(w)", "return width", "return height", False),
        ("f(width)", "f(w)", "return height", "return w", False),
        ("*(&x) = 1", "x = 1", "*(&x) = 2", "x = 2", True),
        ("", "  email: string;", "", "  email: row.email,", True),
        ("", "import json", "a = 1", "", False),
        ("a = 1 # why", "a = 1", "b = 2 # why", "b = 2", True),
        ("a = 1 # why", "a = 1", "", "b = 2 # why", False),
    ],
)
def test_an_edit_does_a_part_of_a_change(
    before: str, after: str, old: str, new: str, is_so: bool
) -> None:
    change = Change("b.py", 7, (before,), (after,))
    edit = Edit("a.py", 0, len(old), new, 0, 0, 1.0, 0.0, 0)
    assert is_related(edit, Document(old, 0, "a.py"), [change]) == is_so


@pytest.mark.slow
def test_a_key_reads_the_latest_edit_alone(small_bundle: Path) -> None:
    """After a key, at most 15 % of the prompt's tokens are computed."""
    lines = [f"    value_{i} = compute(width, {i}) + offset  # step {i}\n" for i in range(60)]
    before = "def area(width):\n" + "".join(lines)
    at = before.index("compute(width, 30)") + len("compute(")
    with (
        edgedec.load(small_bundle) as engine,
        EditPredictor(engine, EditConfig(min_probability=1)) as predictor,
    ):
        predictor.see(Document(before, 0, "a.py"))
        for n in range(1, 4):
            text = before[:at] + "size"[:n] + before[at + len("width") :]
            predictor.update(Document(text, at + n, "a.py")).result(timeout=60)
        shares = [a.n_read_tokens / a.n_prompt_tokens for a in predictor.answers]
    assert len(shares) == 6  # two windows for each of three keys
    assert max(shares[2:]) < 0.15


def test_old_changes_are_left_out_where_there_is_no_room(make: Make) -> None:
    engine = make(AFTER)
    with EditPredictor(engine, SWEEP) as predictor:
        for i in range(8):
            predictor.see(Document("x\n", 0, f"{i}.py"))
            predictor.see(Document("word " * 400 + "\n", 0, f"{i}.py"))
        predictor.see(Document(BEFORE, 0, "a.py"))
        edit = predictor.update(Document(NOW, CURSOR, "a.py")).result(timeout=60)
        assert predictor.answers[-1].n_prompt_tokens < engine.context
    assert edit is not None
    assert edit.applied(NOW) == AFTER
