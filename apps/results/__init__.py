"""Result files: what `bench` and `eval` measured, in one form that can be kept and compared."""
