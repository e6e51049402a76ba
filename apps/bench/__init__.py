"""`edgedec bench`: passes and whole prompts measured in turn, and reported."""
