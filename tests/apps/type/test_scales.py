"""Where the suggestion stands on screens of usual and of double density: `make test-desktop`."""

from __future__ import annotations

import pytest

from .conftest import BROWSERS, TOOLKITS, Desktop, Page, Window, wait_for
from .test_toolkits import TEXT, becomes

pytestmark = pytest.mark.toolkits


def stands_behind_a_letter(desktop: Desktop, scale: int) -> bool:
    """Says whether the suggestion is as high as a line, and has ink before it."""
    left, top, _, height = desktop.ghost_box()
    before = desktop.picture().crop((left - 8 * scale, top, left, top + height))
    return 12 * scale <= height <= 28 * scale and min(before.convert("L").tobytes()) < 100


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("toolkit", [*(name for name in TOOLKITS if name != "vte"), *BROWSERS])
def test_the_suggestion_stands_behind_the_text(
    suggesting: Desktop, toolkit: str, scale: int
) -> None:
    window = (Page if toolkit in BROWSERS else Window)(suggesting, toolkit, scale)
    try:
        suggesting.type(TEXT)
        wait_for(suggesting.ghost, "a suggestion")
        becomes(window, TEXT)
        ghost = wait_for(suggesting.ghost, "the suggestion behind all of the text")
        if toolkit != "gtk4":  # which does not say where the caret is
            wait_for(lambda: stands_behind_a_letter(suggesting, scale), "the suggestion behind it")
        suggesting.key("Tab")
        wait_for(lambda: window.text().startswith(TEXT + ghost), "the suggestion in the text")
    finally:
        window.close()
