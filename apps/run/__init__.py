"""`edgedec run`: the command line, and what a terminal shows while tokens are drafted."""
