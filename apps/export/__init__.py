"""`edgedec export`."""
