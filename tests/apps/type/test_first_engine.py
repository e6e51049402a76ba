"""A desktop that starts chooses its first engine, and may do so after `edgedec type`."""

from __future__ import annotations

import pytest

from .conftest import Desktop, wait_for

pytestmark = pytest.mark.toolkits


def test_ours_stays_where_the_desktop_chooses_later(suggesting: Desktop) -> None:
    def is_ours() -> bool:
        return suggesting.output("ibus", "engine").strip() == b"edgedec"

    wait_for(is_ours, "our engine")
    suggesting.output("ibus", "engine", "xkb:us::eng")
    wait_for(is_ours, "our engine once more")
    suggesting.output("ibus", "engine", "xkb:us::eng")  # by somebody, who means it
    suggesting.settle()
    with pytest.raises(AssertionError):
        wait_for(is_ours, "our engine a third time", 4.0)
