"""Models, and the state of the texts that they compute: passes, prefill, prefixes, files."""
