"""One file for each interface: its bodies become core requests, events become its answers."""
