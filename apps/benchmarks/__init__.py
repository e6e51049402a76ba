"""What `edgedec bench` does: passes and whole prompts measured in turn, and reported."""
