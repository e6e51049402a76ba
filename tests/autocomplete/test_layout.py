"""Where the window on a document begins: where it began, so that keys cost their own tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgedec.autocomplete.config import AutocompleteConfig
from edgedec.autocomplete.document import Document
from edgedec.autocomplete.layout import PromptLayout
from edgedec.models.errors import ConfigError
from edgedec.runtime.engine.engine import Engine
from edgedec.runtime.text.common_prefix import common_prefix
from edgedec.runtime.text.prompt import PromptEncoder

from .conftest import FILLING

LINES = "".join(f"line {i} of a text\n" for i in range(400))
Maker = Callable[..., Engine]


def make_layout(engine: Engine, **config: int) -> PromptLayout:
    return PromptLayout(engine, AutocompleteConfig(max_new_tokens=8, **config))


def test_a_model_that_cannot_fill_in_reads_what_is_before(make_engine: Maker) -> None:
    engine = make_engine()
    layout = make_layout(engine, n_before=64, n_after=4)
    window = layout.window(Document("some text and more", 9))
    assert layout.prompt(window) == engine.encode("some text")
    assert layout.infill is None


def test_what_is_behind_is_read_by_those_who_can_fill_in(filling: Engine) -> None:
    layout = make_layout(filling, n_before=64, n_after=4)
    text = "some text and more words than fit"
    tokens = layout.prompt(layout.window(Document(text, 9)))
    prefix, suffix, middle = (filling.tokenizer.encode_rendered(t, {})[0] for t in FILLING)
    encode = filling.tokenizer.encode
    expected = [prefix, suffix, *encode(text[9:])[:4], middle, *encode(text[:9])]
    assert tokens == expected


def test_prompts_begin_as_texts_do(filling: Engine) -> None:
    layout = make_layout(filling, n_before=64, n_after=4)
    window = layout.window(Document("some text and more", 9))
    plain = layout.prompt(window)
    filling.encoder = PromptEncoder(filling.tokenizer, opening=(7, 8))
    assert make_layout(filling, n_before=64, n_after=4).prompt(window) == [7, 8, *plain]


def test_windows_stay_where_they_began_and_jump_by_a_quarter(filling: Engine) -> None:
    layout = make_layout(filling, n_before=128, n_after=4)
    starts, reused, tokens = [], 0, []
    cursors = range(2000, 4000, 7)
    for cursor in cursors:
        window = layout.window(Document(LINES[:cursor], cursor))
        assert LINES[window.start : cursor] == window.before
        assert window.start == 0 or LINES[window.start - 1] == "\n"
        new = layout.prompt(window)
        assert len(new) <= 128 + 4 + 3
        reused += common_prefix(tokens, new)
        tokens = new
        starts.append(window.start)
    assert starts == sorted(starts)
    assert len(set(starts)) < len(cursors) / 5
    assert reused > 0.8 * 96 * len(cursors)


def test_a_text_changed_far_above_moves_the_window_along(filling: Engine) -> None:
    layout = make_layout(filling, n_before=128, n_after=32)
    before = layout.window(Document(LINES, 3000))
    longer = "new line\n" + LINES
    after = layout.window(Document(longer, 3009))
    assert after.start == before.start + 9
    assert layout.prompt(after) == layout.prompt(before)


def test_a_part_of_a_document_is_as_good_as_all_of_it(filling: Engine) -> None:
    of_all = make_layout(filling, n_before=64, n_after=32)
    of_part = make_layout(filling, n_before=64, n_after=32)
    reach = of_part.reach
    for cursor in [*range(0, len(LINES), 97), *range(3000, 3050)]:
        start = max(0, cursor - reach - 1)
        part = Document(LINES[start : cursor + reach], cursor - start, offset=start)
        assert of_part.window(part) == of_all.window(Document(LINES, cursor))


def test_huge_documents_are_read_near_the_cursor_only(filling: Engine) -> None:
    layout = make_layout(filling, n_before=64, n_after=32)
    text = "x" * 50_000_000
    window = layout.window(Document(text, 25_000_000))
    assert len(window.before) + len(window.after) < 1000
    assert len(layout.prompt(window)) <= 64 + 32 + 3


def test_a_context_without_room_is_refused(make_engine: Maker) -> None:
    with pytest.raises(ConfigError, match="of a context of 40, expected that some are left"):
        make_layout(make_engine(context=40))


@pytest.mark.parametrize("text", ["\r\n" * 50, "a\ud800b" * 30, "🙂" * 200, "\t" * 300])
def test_odd_texts_have_windows(filling: Engine, text: str) -> None:
    layout = make_layout(filling, n_before=32, n_after=32)
    for cursor in (0, 1, len(text) // 2, len(text)):
        window = layout.window(Document(text, cursor))
        assert text[window.start : cursor] == window.before
        assert len(layout.prompt(window)) <= 32 + 32 + 3
