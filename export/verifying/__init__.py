"""What was written, against the reference."""
