"""Maps that predict keys and values of later layers from hidden states."""
