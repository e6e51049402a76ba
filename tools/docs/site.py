"""Hooks of the documentation site: pages of the repository's root, and the command line's help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
"""Files of the root that are pages -> their names on the site."""

_COMMANDS = "<!-- commands -->"
_LINK = re.compile(r"\[([^\]]*)\]\((?!https?:|mailto:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that lie outside docs/."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=site_links(text, ROOT)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fills in the command line's help, and mends links that leave docs/."""
    if _COMMANDS in markdown:
        markdown = markdown.replace(_COMMANDS, "\n\n".join(_help_sections()))
    source = page.file.abs_src_path
    return markdown if source is None else site_links(markdown, Path(source).parent)


def site_links(markdown: str, folder: Path) -> str:
    """Returns ``markdown``, a page in ``folder``, with the links that it has on the site.

    A link to a file that is no page, such as a program, becomes its text.
    """

    def mended(match: re.Match[str]) -> str:
        text, link, anchor = match[1], match[2], match[3] or ""
        target = (folder / link).resolve()
        if target.is_relative_to(ROOT / "docs"):
            inside = target.relative_to(ROOT / "docs").as_posix()
            return f"[{text}]({inside}{anchor})" if folder == ROOT else match[0]
        if target.parent == ROOT and target.name in PAGES:
            up = "" if folder == ROOT else "../" * len(folder.relative_to(ROOT / "docs").parts)
            return f"[{text}]({up}{PAGES[target.name]}{anchor})"
        return text

    return _LINK.sub(mended, markdown)


def _help_sections() -> Iterator[str]:
    """Yields a heading and the help page of every verb, and of their verbs."""
    import typer

    from edgedec.apps.verbs import VERBS, make_app

    program = typer.main.get_command(make_app(VERBS))
    for verb, command in program.commands.items():  # type: ignore[attr-defined]
        yield _section(f"edgedec {verb}", command, 2)
        for name, inner in getattr(command, "commands", {}).items():
            yield _section(f"edgedec {verb} {name}", inner, 3)


def _section(name: str, command: Any, level: int) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    return f"{'#' * level} {name}\n\n```text\n{command.get_help(context).strip()}\n```"
