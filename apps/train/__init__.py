"""`edgedec train`: its command line."""
