"""What becomes of a model on its way from a checkpoint to a graph, and what is passed on."""
