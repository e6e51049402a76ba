"""`edgedec chat`: a conversation at a terminal, or fed by a pipe."""
