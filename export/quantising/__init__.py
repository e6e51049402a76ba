"""From floats to the codes of a storage format."""
