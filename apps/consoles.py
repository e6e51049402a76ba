"""Consoles for tables, colours and bars. Importing them delays a first token: only who draws does.

Both look up sys.stdout and sys.stderr at each use, so they follow redirections.
"""

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
