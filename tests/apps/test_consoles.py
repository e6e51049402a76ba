"""Tables on narrow terminals: a path goes on in the next line, and its name is never cut off."""

from __future__ import annotations

from typing import Any

import pytest
from rich.table import Table

from edgedec.apps.console.consoles import out


@pytest.mark.parametrize("width", [30, 80])
def test_paths_are_whole(capsys: Any, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setattr(out, "_width", width)  # or the width is that of when it was made
    path = "/home/somebody/" + "long-folder/" * 12 + "the-name.edgedec"
    table = Table("path", "size", box=None)
    table.add_row(path, "1 B")
    out.print(table)
    shown = "".join(line[: width - 5].strip() for line in capsys.readouterr().out.splitlines())
    assert path in shown.replace("1 B", "").replace("size", "")
