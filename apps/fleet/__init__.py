"""`edgedec fleet`: measuring and evaluating on many devices at once."""
