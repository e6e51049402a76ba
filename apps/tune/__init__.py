"""`edgedec tune`: traces of both models, a sweep over them, and runs of the best."""
