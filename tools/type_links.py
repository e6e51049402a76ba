"""Names a folder of links to type checkers of programs that use an editable install.

python tools/type_links.py build/typing

Editable installs find their modules by a hook that only Python runs. Checkers read the paths in
`.pth` files instead, in the order of these files' names. Python's hook still comes first.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def name_links(links: Path, site_packages: Path) -> None:
    """Puts ``links`` before every other path that ``site_packages`` adds."""
    (site_packages / "__edgedec_typing.pth").write_text(f"{links.absolute()}\n", encoding="utf-8")


if __name__ == "__main__":
    name_links(Path(sys.argv[1]), Path(sysconfig.get_path("purelib")))
