"""Consoles for tables, colours and bars. Importing them delays a first token: only who draws does.

Both look up sys.stdout and sys.stderr at each use, so they follow redirections. What models and
bundles say of themselves cannot steer a terminal.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from edgedec.apps.console.output import output_error, visible


class _Console(Console):
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not self.is_terminal:
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


class _Output(_Console):
    def print(self, *objects: Any, **options: Any) -> None:
        for column in (c for table in objects if isinstance(table, Table) for c in table.columns):
            column.overflow = "fold"  # an ellipsis would take the ends of paths, their names
        try:
            super().print(*objects, **options)
        except OSError as error:
            raise output_error(error) from None


class _Remarks(_Console):
    def print(self, *objects: Any, **options: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **options)


out = _Output(highlight=False)
err = _Remarks(stderr=True, highlight=False)
