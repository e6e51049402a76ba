"""What `edgedec tune` does: traces of both models, a sweep over them, and runs of the best."""
