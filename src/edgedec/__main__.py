"""`python -m edgedec`: the program where its own command is not on the path."""

from edgedec.apps.cli import main

main()
